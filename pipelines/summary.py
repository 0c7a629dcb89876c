"""The summary of a prepared data set, for people."""

from __future__ import annotations

from pipelines.dataset import FIRST_ID, Manifest


def summary(manifest: Manifest, distinct: list[int], lookups: dict[str, list[int]], bad: list[str]) -> str:
    """A page of text: rows and label rate of each split, a line a column.

    Args:
        distinct: distinct values of each table in the train split.
        lookups: by split, lookups with a value of each table.
        bad: lines about bad lines.
    """
    lines = [
        f"format    {manifest.source_format}",
        f"split     {manifest.split_rule}",
        f"dense     {manifest.transform}",
    ]
    lines.append(f"min count {manifest.min_count}")
    lines += [f"bad lines {text}" for text in bad or ["none"]]
    lines += ["", f"{'split':<8}{'rows':>15}{'label rate':>12}{'parts':>7}"]
    for name, split in manifest.splits.items():
        rate = split.positives / split.rows if split.rows else 0.0
        lines.append(f"{name:<8}{split.rows:>15,}{rate:>12.3%}{len(split.parts):>7}")
    first = next(iter(manifest.splits.values()))
    width = max(map(len, [*(d.name for d in manifest.dense), *(t.name for t in manifest.tables)])) + 2
    if manifest.dense:
        lines += ["", f"{'dense':<{width}}{'missing':>9}"]
        lines += [f"{d.name:<{width}}{d.missing / max(1, first.rows):>9.2%}" for d in manifest.dense]
    if manifest.tables:
        unknown = "".join(f"{'unknown ' + name:>15}" for name in manifest.splits)
        lines += ["", f"{'table':<{width}}{'cardinality':>13}{'ids':>13}{'missing':>9}{'top 1 %':>9}{unknown}"]
    for i, (table, values) in enumerate(zip(manifest.tables, distinct, strict=True)):
        share = table.missing / max(1, first.rows)
        shares = "".join(f"{n / max(1, lookups[s][i]):>15.2%}" for s, n in table.unknown.items())
        kind = " (multi-hot)" if table.multi_hot else ""
        row = f"{table.name:<{width}}{values:>13,}{table.rows:>13,}{share:>9.2%}{table.top1_share:>9.2%}{shares}{kind}"
        lines.append(row)
    lines += [
        "",
        f"Ids: 0 missing, 1 unknown or rare, from {FIRST_ID} on by falling frequency in the train split.",
        "missing: share of the rows of the first split. top 1 %: share of its lookups with a value that goes to the",
        "commonest 1 % of values. unknown: share of the lookups with a value of that split.",
    ]
    return "\n".join(lines) + "\n"
