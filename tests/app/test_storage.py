from pathlib import Path

import fsspec
import pyarrow.fs as pafs
import pytest
from fsspec.implementations.local import LocalFileSystem

from app import storage
from pipelines.errors import UserError


class Flaky(LocalFileSystem):
    """A file system whose first `failures` writes fail, as an object store's call does now and then."""

    def __init__(self, failures: int) -> None:
        super().__init__()
        self.failures = failures

    def open(self, path, mode="rb", **kwargs):
        if "w" in mode and self.failures > 0:
            self.failures -= 1
            raise OSError("503 slow down")
        return super().open(path, mode, **kwargs)


@pytest.fixture(autouse=True)
def no_pause(monkeypatch) -> None:
    monkeypatch.setattr(storage, "FIRST_PAUSE_S", 0.0)
    fsspec.AbstractFileSystem.clear_instance_cache()


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    folder = tmp_path / "local"
    (folder / "deep").mkdir(parents=True)
    (folder / "state.json").write_text("{}")
    (folder / "deep" / "shard").write_bytes(b"x" * 1000)
    return folder


def test_one_failed_call_does_not_end_the_training(tmp_path: Path, checkpoint: Path) -> None:
    # ray-project/ray#41137
    filesystem = pafs.PyFileSystem(pafs.FSSpecHandler(Flaky(failures=1)))
    copied = storage.upload_to(filesystem, str(tmp_path / "far" / "c1"), checkpoint)
    assert (tmp_path / "far" / "c1" / "deep" / "shard").read_bytes() == b"x" * 1000
    assert copied.path == str(tmp_path / "far" / "c1")


def test_a_storage_that_stays_away_ends_in_its_error(tmp_path: Path, checkpoint: Path) -> None:
    filesystem = pafs.PyFileSystem(pafs.FSSpecHandler(Flaky(failures=10**6)))
    with pytest.raises(OSError, match="503"):
        storage.upload_to(filesystem, str(tmp_path / "far" / "c1"), checkpoint)


def test_paths(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert storage.resolve_storage("runs") == str(tmp_path / "runs")
    assert storage.resolve_storage("/x/y") == "/x/y"
    with pytest.raises(UserError, match="cannot open it"):
        storage.resolve_storage("nonsense://bucket/x")
    copy = tmp_path / "working_dir_files" / "pkg"
    copy.mkdir(parents=True)
    monkeypatch.chdir(copy)
    with pytest.raises(UserError, match="which Ray deletes"):
        storage.resolve_storage("runs")


def test_a_uri_has_a_local_folder_too_inside_a_job(tmp_path: Path, monkeypatch) -> None:
    copy = tmp_path / "working_dir_files" / "pkg"
    copy.mkdir(parents=True)
    monkeypatch.chdir(copy)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "share"))
    assert storage.local_storage("s3://bucket/runs") == tmp_path / "share" / "thinwire"


def test_text_files(tmp_path: Path) -> None:
    storage.write_text(f"{tmp_path}/run/config.yaml", "a: ü\n")
    assert storage.read_text(f"{tmp_path}/run/config.yaml") == "a: ü\n"
    with pytest.raises(UserError, match="no such file"):
        storage.read_text(f"{tmp_path}/none/config.yaml")
