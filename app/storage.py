"""Where runs are kept: a path that all nodes share, or a URI that pyarrow understands."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pyarrow.fs as pafs
import ray.train

from pipelines.errors import UserError

CONFIG = "config.yaml"
"""Configuration of a run, in its folder."""
_JOB_COPIES = "working_dir_files"
"""Ray unpacks the working folder of a job below a folder of this name."""
ATTEMPTS = 4
FIRST_PAUSE_S = 0.5


def is_uri(storage: str) -> bool:
    return "://" in storage


def resolve_storage(storage: str) -> str:
    """An absolute path, or the URI as it is. A relative path counts from the working folder of the command.

    Raises:
        UserError: pyarrow has no file system for the URI; or the path is relative inside a Ray job, whose working
            folder is a copy that Ray deletes.
    """
    if is_uri(storage):
        open_storage(storage)
        return storage
    path = Path(storage).expanduser()
    if not path.is_absolute() and _JOB_COPIES in Path.cwd().parts:
        raise UserError(
            f"'{storage}' would lie in the job's copy of the working folder, which Ray deletes",
            where="run.storage",
            fix="give an absolute path that all nodes share, as in --set run.storage=/shared/runs",
        )
    return str(path.absolute())


def local_storage(storage: str) -> Path:
    """The storage if it is a path, else ~/.local/share/thinwire: where files that cannot live behind a URI go."""
    if not is_uri(storage):
        return Path(resolve_storage(storage))
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "thinwire"


def open_storage(storage: str) -> tuple[pafs.FileSystem, str]:
    """File system and path in it.

    Raises:
        UserError: pyarrow has no file system for the URI.
    """
    try:
        return pafs.FileSystem.from_uri(storage) if is_uri(storage) else (pafs.LocalFileSystem(), storage)
    except (ValueError, OSError, NotImplementedError, ImportError) as error:
        raise UserError(
            f"this pyarrow cannot open it: {error}",
            where=f"run.storage {storage}",
            fix="use a shared folder, or a pyarrow built with that file system",
        ) from error


def read_text(file: str) -> str:
    """The text of a file in a storage.

    Raises:
        UserError: there is none.
    """
    filesystem, path = open_storage(file)
    try:
        with filesystem.open_input_stream(path) as stream:
            return stream.read().decode()
    except OSError as error:
        raise UserError("no such file", where=file, fix="name the folder of a run") from error


def write_text(file: str, text: str) -> None:
    """Write a file, with its folder, in a storage."""
    filesystem, path = open_storage(file)
    filesystem.create_dir(str(Path(path).parent), recursive=True)
    with filesystem.open_output_stream(path) as stream:
        stream.write(text.encode())


def upload(folder: Path, run_folder: str, name: str) -> ray.train.Checkpoint:
    """Copy a local checkpoint folder to `run_folder`/`name`, with a few attempts: one failed call to an object store
    must not end a training of days.

    Raises:
        OSError: all attempts failed.
    """
    filesystem, path = open_storage(f"{run_folder}/{name}")
    return upload_to(filesystem, path, folder)


def upload_to(filesystem: pafs.FileSystem, path: str, folder: Path) -> ray.train.Checkpoint:
    """`upload` to an opened file system."""
    for attempt in range(ATTEMPTS):
        try:
            filesystem.create_dir(path, recursive=True)
            pafs.copy_files(
                str(folder), path, source_filesystem=pafs.LocalFileSystem(), destination_filesystem=filesystem
            )
            return ray.train.Checkpoint(path, filesystem)
        except OSError:
            if attempt == ATTEMPTS - 1:
                raise
            time.sleep(FIRST_PAUSE_S * 2**attempt)
    raise AssertionError("unreachable")
