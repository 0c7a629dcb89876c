"""How `prepare` runs: resume after a kill, full disk, two at once, Ray, memory."""

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from filelock import FileLock
from prepare_inputs import contents, criteo_lines, write_lines

from pipelines.dataset import Dataset
from pipelines.errors import UserError
from pipelines.prepare import PrepareOptions, prepare

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    folder = tmp_path_factory.mktemp("days")
    return [write_lines(folder / f"day_{i}", criteo_lines(3000, seed=i)) for i in range(4)]


@pytest.fixture(scope="module")
def clean(sources, tmp_path_factory):
    out = tmp_path_factory.mktemp("clean") / "out"
    prepare(sources, format="criteo-1tb", out=out)
    return contents(out)


def run_python(code: str, *args, env=None) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *map(str, args)],
        cwd=ROOT,
        env={**os.environ, **(env or {})},
        capture_output=True,
        text=True,
    )


KILLED = """
    import os, signal, sys
    from pipelines.prepare import PrepareOptions, prepare
    out, stage, at, *sources = sys.argv[1:]
    seen = 0
    def progress(name, done, total):
        global seen
        seen += name == stage
        if seen == int(at):
            os.kill(os.getpid(), signal.SIGKILL)
    prepare(sources, format="criteo-1tb", out=out, options=PrepareOptions(keep_scratch=True), progress=progress)
"""


# facebookresearch/dlrm#125, #199: days of work lost at the last step.
@pytest.mark.parametrize(("stage", "at"), [("parse", 1), ("parse", 4), ("rank", 9), ("encode", 2)])
def test_a_killed_run_resumes_to_the_same_bytes(sources, clean, tmp_path, stage, at):
    out = tmp_path / "out"
    assert run_python(KILLED, out, stage, at, *sources).returncode == -9
    with pytest.raises(UserError, match="not a data set, or half written"):
        Dataset(out)
    before = {p: p.stat().st_mtime_ns for p in (out / ".scratch").glob("*.json")}
    prepare(sources, format="criteo-1tb", out=out, options=PrepareOptions(keep_scratch=True))
    # What was finished was not done again.
    kept = [p for p, time in before.items() if p.name != "plan.json" and p.stat().st_mtime_ns == time]
    assert len(kept) == len(before) - 1
    assert {n: b for n, b in contents(out).items() if ".scratch" not in n} == clean


@pytest.mark.parametrize("change", ["input", "options"])
def test_a_killed_run_of_something_else_is_not_mixed_in(sources, tmp_path, change):
    out = tmp_path / "out"
    files = [write_lines(tmp_path / s.name, s.read_text().splitlines()) for s in sources]
    assert run_python(KILLED, out, "encode", 2, *files).returncode == -9
    options = PrepareOptions()
    if change == "input":
        write_lines(files[0], criteo_lines(2900, seed=9))
    else:
        options = PrepareOptions(split="files:2", min_count=2)
    prepare(files, format="criteo-1tb", out=out, options=options)
    prepare(files, format="criteo-1tb", out=tmp_path / "fresh", options=options)
    assert contents(out) == contents(tmp_path / "fresh")


LIMITED = """
    import resource, sys
    from pipelines.errors import UserError
    from pipelines.prepare import prepare
    out, size, *sources = sys.argv[1:]
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(size), int(size)))
    try:
        prepare(sources, format="criteo-1tb", out=out)
    except UserError as error:
        print(error)
        sys.exit(2)
"""


@pytest.mark.parametrize("size", [1000, 100_000, 300_000, 500_000])
def test_a_full_disk_is_one_clear_line_and_resumes(sources, clean, tmp_path, size):
    # A limit on file size makes writes fail like a full disk, at a place that we choose.
    out = tmp_path / "out"
    run = run_python(LIMITED, out, size, *sources)
    assert run.returncode == 2, run.stderr
    assert "the disk is full" in run.stdout
    assert run.stdout.count("\n") == 1
    with pytest.raises(UserError):
        Dataset(out)
    prepare(sources, format="criteo-1tb", out=out)
    assert contents(out) == clean


def test_too_little_space_is_said_before_the_start(sources, tmp_path, monkeypatch):
    monkeypatch.setattr("pipelines.prepare.shutil.disk_usage", lambda _: type("Usage", (), {"free": 1000}))
    with pytest.raises(UserError, match=r"need about 0.0 GiB, 0.0 are free"):
        prepare(sources, format="criteo-1tb", out=tmp_path / "out")


def test_two_runs_in_one_folder_are_refused(sources, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    with FileLock(out / ".lock"), pytest.raises(UserError, match="another prepare writes to this folder"):
        prepare(sources, format="criteo-1tb", out=out)


def test_a_finished_folder_is_kept_unless_told_otherwise(sources, tmp_path):
    out = tmp_path / "out"
    prepare(sources[:1], format="criteo-1tb", out=out)
    first = contents(out)
    with pytest.raises(UserError, match="already holds a prepared data set"):
        prepare(sources[1:2], format="criteo-1tb", out=out)
    assert contents(out) == first
    prepare(sources[1:3], format="criteo-1tb", out=out, options=PrepareOptions(overwrite=True, split="files:1"))
    prepare(sources[1:3], format="criteo-1tb", out=tmp_path / "b", options=PrepareOptions(split="files:1"))
    assert contents(out) == contents(tmp_path / "b")


def test_a_folder_with_other_files_is_left_alone(sources, tmp_path):
    (tmp_path / "thesis.tex").write_text("precious")
    with pytest.raises(UserError, match="the folder holds other files: thesis"):
        prepare(sources, format="criteo-1tb", out=tmp_path, options=PrepareOptions(overwrite=True))
    assert (tmp_path / "thesis.tex").read_text() == "precious"


def test_out_that_cannot_be_a_folder(sources, tmp_path):
    (tmp_path / "file").write_text("")
    for out in (tmp_path / "file", tmp_path / "file" / "out"):
        with pytest.raises(UserError, match=r"file(/out)?: (file exists|not a directory)"):
            prepare(sources, format="criteo-1tb", out=out)
    with pytest.raises(UserError, match="workers is -1"):
        prepare(sources, format="criteo-1tb", out=tmp_path / "out", workers=-1)


def test_progress(sources, tmp_path):
    calls = []
    prepare(sources, format="criteo-1tb", out=tmp_path / "out", progress=lambda *a: calls.append(a))
    for stage in ("parse", "rank", "encode"):
        done = [c[1] for c in calls if c[0] == stage]
        assert done == sorted(done)
        assert {c[2] for c in calls if c[0] == stage} == {done[-1]}


# ray-project/ray#59662: Python's own hash is salted per process.
def test_bytes_do_not_depend_on_the_hash_seed(sources, clean, tmp_path):
    code = (
        "import sys; from pipelines.prepare import prepare; prepare(sys.argv[2:], format='criteo-1tb', out=sys.argv[1])"
    )
    for seed in ("0", "4242"):
        run = run_python(code, tmp_path / seed, *sources, env={"PYTHONHASHSEED": seed})
        assert run.returncode == 0, run.stderr
        assert contents(tmp_path / seed) == clean


@pytest.mark.ray
@pytest.mark.slow
def test_ray_gives_the_same_bytes(sources, clean, tmp_path):
    ray = pytest.importorskip("ray")
    ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False, address="local")
    try:
        for workers in (1, 4):
            prepare(sources, format="criteo-1tb", out=tmp_path / str(workers), workers=workers)
            assert contents(tmp_path / str(workers)) == clean
        lines = sources[0].read_text().splitlines()
        bad = write_lines(tmp_path / "day_9", [*lines, "1\t2"])
        with pytest.raises(UserError, match=r"day_9:3001: 2 fields, expected 40"):
            prepare([*sources, bad], format="criteo-1tb", out=tmp_path / "bad", workers=2)
        assert ray.is_initialized()
    finally:
        ray.shutdown()


MEASURED = """
    import resource, sys
    resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
    from pathlib import Path
    from pipelines.prepare import prepare
    prepare([sys.argv[2]], format="criteo-kaggle", out=sys.argv[1])
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    print(int(status["VmPeak"].split()[0]), int(status["VmHWM"].split()[0]))
"""


# facebookresearch/dlrm#38, #184: preprocessing needed more memory than any machine had.
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_memory_is_flat_in_the_size_of_the_input(tmp_path):
    chunk = ("\n".join(criteo_lines(20_000, ids=3000)) + "\n").encode()
    peaks = {}
    for megabytes in (60, 480):
        source = tmp_path / f"{megabytes}.txt"
        with source.open("wb") as file:
            for i in range(megabytes * 10**6 // len(chunk)):
                # Letters change places, so that each chunk brings some new ids.
                file.write(
                    chunk.translate(bytes.maketrans(b"abcdef", bytes(b"abcdef"[(j + i % 6) % 6] for j in range(6))))
                )
        run = run_python(MEASURED, tmp_path / f"out{megabytes}", source)
        assert run.returncode == 0, run.stderr[-2000:]
        peaks[megabytes] = json.loads(f"[{run.stdout.replace(' ', ',')}]")
        source.unlink()
    print("\npeak address space and resident memory in KiB by input MB:", peaks)
    assert peaks[480][1] < peaks[60][1] * 1.15
