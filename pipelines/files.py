"""Files that appear whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel

_Result = TypeVar("_Result", bound=BaseModel)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary path beside `path` that becomes `path` when the block ends well."""
    temporary = path.with_name(f".{path.name}.tmp")
    yield temporary
    temporary.replace(path)


def write_bytes(path: Path, data: bytes, durable: bool = False) -> None:
    """Writes a whole file in one step; `durable`: it is on the disk before it gets its name."""
    with replacing(path) as temporary:
        temporary.write_bytes(data)
        if durable:
            with temporary.open("rb") as file:
                os.fsync(file.fileno())


def finished(path: Path, kind: type[_Result]) -> _Result | None:
    """The result that a stage has left at `path`, None if it has not finished.

    A stage writes its result last and in one step, and one whose result is there is not run again: that is how a
    killed run resumes.
    """
    return kind.model_validate_json(path.read_bytes()) if path.is_file() else None


def leave(path: Path, result: BaseModel) -> None:
    """Leaves the result of a stage at `path`."""
    write_bytes(path, result.model_dump_json().encode())
