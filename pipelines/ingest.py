"""First stage of `prepare`: one input file to segments in the scratch."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel

from pipelines.errors import UserError
from pipelines.files import finished, leave
from pipelines.parse import BadLine
from pipelines.readers import Reader
from pipelines.segments import SegmentInfo, SegmentWriter

_BAD_SHOWN = 5


class Parsed(BaseModel):
    """Result of parsing one file."""

    rows: int
    n_bad: int
    bad: list[str]
    """The first bad lines."""
    segments: list[SegmentInfo]


@dataclass(frozen=True)
class ParseJob:
    """Parses input file number `index`."""

    index: int
    source: Path
    scratch: Path
    reader: Reader
    skip_bad: bool

    def run(self, on_bytes: Callable[[int], None] | None = None) -> Parsed:
        """Raises UserError at the first bad line, unless bad lines are to be skipped."""
        name = f"{self.index:05d}"
        result = self.scratch / f"parsed-{name}.json"
        if (done := finished(result, Parsed)) is not None:
            return done
        folder = self.scratch / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        schema = self.reader.schema
        writer = SegmentWriter(folder, name, len(schema.dense), len(schema.categorical), len(schema.lists))
        rows = n_bad = 0
        bad: list[str] = []
        for read in self.reader.read(self.source):
            if read.bad and not self.skip_bad:
                raise _bad_line_error(self.source, read.bad[0])
            bad += [f"line {b.line}: {b.what}" for b in read.bad[: _BAD_SHOWN - len(bad)]]
            n_bad += read.n_bad
            rows += len(read.block.label)
            writer.add(read.block)
            if on_bytes is not None:
                on_bytes(read.position)
        parsed = Parsed(rows=rows, n_bad=n_bad, bad=bad, segments=writer.close())
        leave(result, parsed)
        return parsed


def _bad_line_error(source: Path, bad: BadLine) -> UserError:
    return UserError(
        bad.what, where=f"{source}:{bad.line}", fix="mend the line, or leave bad lines out with --on-bad-line skip"
    )
