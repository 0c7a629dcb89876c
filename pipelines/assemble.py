"""The manifest of a prepared data set, put together from the results of the stages."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pipelines.dataset import DenseInfo, Manifest, PartInfo, SplitInfo, TableInfo
from pipelines.encode import Encoded
from pipelines.formats import Schema
from pipelines.ranking import Ranked
from pipelines.splits import Split


def columns_alone(schema: Schema, format: str, min_count: int) -> Manifest:
    """A manifest that knows the columns and nothing of the rows: enough for `part_schema`."""
    multi_hot = {c.name for c in schema.multi_hot}
    return Manifest(
        label=str(schema.label),
        dense=[DenseInfo(name=c.name) for c in schema.dense_columns],
        tables=[TableInfo(name=c.name, rows=0, multi_hot=c.name in multi_hot) for c in schema.tables],
        splits={},
        min_count=min_count,
        source_format=format,
    )


def complete(
    columns: Manifest,
    ranked: Sequence[Ranked],
    parts: Sequence[tuple[str, Callable[[str], str], Encoded]],
    split: Split,
) -> Manifest:
    """The whole manifest.

    Args:
        columns: as from `columns_alone`.
        ranked: result of each table.
        parts: of each part: the input file, the path by split, the result.
    """
    stats = {name: [encoded.splits[name] for _, _, encoded in parts] for name in split.names}
    splits = {
        name: SplitInfo(
            rows=sum(s.rows for s in stats[name]),
            positives=sum(s.positives for s in stats[name]),
            parts=[
                PartInfo(path=path(name), rows=s.rows, source=source)
                for (source, path, _), s in zip(parts, stats[name], strict=True)
                if s.rows
            ],
        )
        for name in split.names
    }
    first = stats[split.names[0]]
    dense = [
        DenseInfo(name=d.name, missing=sum(s.dense_missing[i] for s in first)) for i, d in enumerate(columns.dense)
    ]
    tables = [
        TableInfo(
            name=t.name,
            rows=ranked[i].rows,
            multi_hot=t.multi_hot,
            missing=sum(s.missing[i] for s in first),
            unknown={name: sum(s.unknown[i] for s in stats[name]) for name in split.names},
            top1_share=ranked[i].top1_share,
        )
        for i, t in enumerate(columns.tables)
    ]
    return columns.model_copy(update={"dense": dense, "tables": tables, "splits": splits, "split_rule": split.rule})
