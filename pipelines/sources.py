"""From what the user names to the list of input files, in time order."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from pipelines.errors import UserError


def find_files(sources: Sequence[str | Path], format: str, days: list[int] | None = None) -> list[Path]:
    """The input files.

    A file stands for itself. A directory stands for its data files in natural order (part-9 before part-10), without
    hidden ones, those that start with an underscore, and checksums. Criteo 1TB files are put in order of day.

    Args:
        days: Criteo 1TB only: the days wanted, each of which must be there.

    Raises:
        UserError: a path or a day is missing, a directory is empty, a file is named twice, `days` for another format.
    """
    if not sources:
        raise UserError("no input given", fix="name at least one file or directory")
    files = [file for source in sources for file in _expand(Path(source).expanduser())]
    if format == "criteo-1tb":
        files = _days(files, days)
    elif days is not None:
        raise UserError(f"format {format} has no days", fix="leave the days out, or use format criteo-1tb")
    seen: set[Path] = set()
    for file in files:
        if file.resolve() in seen:
            raise UserError("the file is given twice", where=str(file), fix="name each file once")
        seen.add(file.resolve())
    return files


def _expand(source: Path) -> list[Path]:
    if source.is_file():
        return [source.absolute()]
    if not source.exists():
        raise UserError("no such file or directory", where=str(source))
    inside = [p for p in source.iterdir() if p.is_file() and p.name[0] not in "._" and p.suffix != ".crc"]
    if not inside:
        raise UserError("the directory has no data files", where=str(source))
    return [p.absolute() for p in sorted(inside, key=lambda p: _natural(p.name))]


def _natural(name: str) -> list[tuple[int, int, str]]:
    return [(0, int(t), "") if t.isdigit() else (1, 0, t) for t in re.split(r"(\d+)", name) if t]


def _days(files: list[Path], wanted: list[int] | None) -> list[Path]:
    """Files of the wanted days by day; files that name no day keep their place behind."""
    by_day: dict[int, list[Path]] = {}
    other: list[Path] = []
    for file in files:
        match = re.search(r"day_(\d+)", file.name)
        (by_day.setdefault(int(match[1]), []) if match else other).append(file)
    if wanted is None:
        return [f for day in sorted(by_day) for f in by_day[day]] + other
    if missing := sorted(set(wanted) - set(by_day)):
        raise UserError(
            f"no file for day {', '.join(map(str, missing))}: looked for day_{missing[0]} or day_{missing[0]}.gz",
            where=str(files[0].parent),
            fix=f"days found: {', '.join(map(str, sorted(by_day))) or 'none'}",
        )
    return [f for day in sorted(set(wanted)) for f in by_day[day]]
