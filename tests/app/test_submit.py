"""Uploads without a cluster, and jobs on a real one that these tests start."""

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

import psutil
import pytest

import app
from app.submit import check_paths, check_size, collect, last_error_line, submit
from pipelines.errors import UserError

ROOT = Path(app.__file__).parent.parent
BIN = Path(sys.executable).parent


@pytest.fixture
def project(tmp_path):
    """A folder with code, and with what must not travel."""
    root = tmp_path / "project"
    for folder in (".git", ".venv", "data", "runs", "pkg", "big"):
        (root / folder).mkdir(parents=True)
    (root / "pkg/code.py").write_text("print('hello from the copy')\n")
    (root / ".gitignore").write_text("/big/\n")
    for name in (".git/objects", "data/part", "big/blob", ".venv/lib"):
        with (root / name).open("wb") as file:
            file.truncate(300_000_000)  # sparse: 300 MB to a reader
    (root / "mlflow.db").write_text("x" * 1000)
    return root


def test_upload_leaves_out_what_is_large(project):
    # ray-project/ray#45602
    for i in range(20_000):
        (project / "data" / f"{i}.txt").touch()
    upload = collect(project)
    assert set(upload.files) == {Path("pkg/code.py"), Path(".gitignore")}
    assert upload.size < 100
    assert upload.left_out() == [".git", ".venv", "big", "data", "mlflow.db", "runs"]


def test_too_large_an_upload_names_the_largest_entries(project):
    (project / ".gitignore").unlink()
    upload = collect(project)
    with pytest.raises(
        UserError, match=r"300\.0 MB to send, over the limit of 100\.0 MB; largest: big/ 300\.0 MB, pkg/"
    ):
        check_size(upload)
    (project / ".rayignore").write_text("big\n")
    check_size(collect(project))


def test_the_project_itself_is_small():
    upload = collect(ROOT)
    check_size(upload, 5_000_000)
    assert Path("app/submit.py") in upload.files and not any(p.parts[0] == "tests" for p in upload.files)


def test_relative_paths_in_the_entrypoint(project):
    # ray-project/ray#12243
    upload = collect(project)
    for arguments in (["--data", "data"], ["--set", "run.storage=runs"], ["./data/part"], ["--data=big/blob"]):
        with pytest.raises(UserError, match=r"is left out of the upload.*absolute path"):
            check_paths(upload, ["thinwire", "train", *arguments])
    check_paths(
        upload, ["thinwire", "train", "--data", "/mnt/data", "--config", "pkg/code.py", "--preset", "absent", "data"]
    )


def test_missing_working_dir(tmp_path):
    with pytest.raises(UserError, match="no such folder"):
        collect(tmp_path / "absent")


def test_nobody_listens(project):
    with pytest.raises(UserError, match=r"no Ray job server answers at http://127\.0\.0\.1:9"):
        submit("http://127.0.0.1:9", project, ["true"])


def test_last_error_line():
    log = "start\nTraceback (most recent call last):\n  ...\nRuntimeError: boom\n\nbye\n"
    assert last_error_line(log) == "RuntimeError: boom"
    assert last_error_line("a\nb\n\n") == "b" and last_error_line("") == ""


def free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for s in sockets:
            s.bind(("127.0.0.1", 0))
        return [s.getsockname()[1] for s in sockets]


@pytest.fixture(scope="module")
def cluster():
    """The address of the job server of a real cluster of its own; ended by the ids of its processes."""
    temp = Path(tempfile.mkdtemp(prefix="tw-", dir="/tmp"))  # short: a socket's path has 107 characters at most
    ports = free_ports(5)
    env = {k: v for k, v in os.environ.items() if not k.startswith(("RAY_", "PYTEST_"))}
    env["PATH"] = f"{BIN}{os.pathsep}{env['PATH']}"
    env["RAY_AUTH_MODE"] = "disabled"
    flags = "port dashboard-port dashboard-agent-listen-port ray-client-server-port runtime-env-agent-port"
    command = [BIN / "ray", "start", "--head", "--block", f"--temp-dir={temp}", "--num-cpus=2", "--disable-usage-stats"]
    command += [f"--{flag}={port}" for flag, port in zip(flags.split(), ports, strict=True)]
    with (temp / "log").open("w") as log:
        head = subprocess.Popen(command, env=env, stdout=log, stderr=log, start_new_session=True)
    address = f"http://127.0.0.1:{ports[1]}"
    try:
        for _ in range(120):
            assert head.poll() is None, (temp / "log").read_text()
            with contextlib.suppress(OSError):
                urllib.request.urlopen(f"{address}/api/jobs/", timeout=5).close()
                break
            time.sleep(0.5)
        else:
            raise AssertionError((temp / "log").read_text())
        yield address
    finally:
        ours = [p for p in psutil.process_iter(["cmdline"]) if str(temp) in " ".join(p.info["cmdline"] or [])]
        head.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            head.wait(20)
        for process in (*ours, psutil.Process(head.pid) if head.poll() is None else None):
            with contextlib.suppress(psutil.NoSuchProcess, AttributeError):
                process.kill()
        shutil.rmtree(temp, ignore_errors=True)


def program(code: str) -> list[str]:
    return ["python", "-c", code]


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.xdist_group("jobs")
class TestRealCluster:
    def test_success(self, cluster, project, capfd, monkeypatch):
        monkeypatch.setenv("RAY_ADDRESS", "http://127.0.0.1:9")  # the address given is the stronger
        assert submit(cluster, project, ["python", "pkg/code.py"]) == 0
        out = capfd.readouterr().out
        assert "sending 0.0 MB in 2 files" in out and "hello from the copy" in out and "SUCCEEDED" in out
        assert "left out: .git, .venv, big, data" in out

    def test_commit_travels(self, cluster, tmp_path, capfd):
        for command in (
            ["init", "-q"],
            ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "x", "--allow-empty"],
        ):
            subprocess.run(["git", *command], cwd=tmp_path, check=True)
        code = "import os; print('commit', len(os.environ['THINWIRE_GIT_COMMIT']))"
        assert submit(cluster, tmp_path, program(code)) == 0
        assert "commit 40" in capfd.readouterr().out

    @pytest.mark.parametrize(
        ("code", "exit_code", "line"),
        [
            ("raise RuntimeError('no luck')", 1, "FAILED: RuntimeError: no luck"),
            ("import sys; print('bad value: error 7'); sys.exit(2)", 2, "FAILED: bad value: error 7"),
            ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", 137, "FAILED: Killed"),  # out of memory ends so
        ],
    )
    def test_failure(self, cluster, project, capfd, code, exit_code, line):
        # ray-project/ray#38390: the job fails and the exit code is 0.
        assert submit(cluster, project, program(code)) == exit_code
        assert line in capfd.readouterr().err

    def test_time_is_up(self, cluster, project, capfd):
        assert submit(cluster, project, program("import time; time.sleep(600)"), timeout=3) == 130
        assert "STOPPED" in capfd.readouterr().err

    def test_stopped_by_another(self, cluster, project):
        env = {**os.environ, "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"}
        process = self.submitter(cluster, project, env)
        job = self.wait_for_start(process)
        subprocess.run(
            [BIN / "ray", "job", "stop", "--address", cluster, job], env=env, check=True, capture_output=True
        )
        out, err = process.communicate()
        assert process.returncode == 130 and "STOPPED" in err, out + err

    def test_ctrl_c_stops_the_job(self, cluster, project):
        process = self.submitter(cluster, project, dict(os.environ))
        job = self.wait_for_start(process)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate()
        assert process.returncode == 130 and "stopping the job" in out and "STOPPED" in err, out + err
        with urllib.request.urlopen(f"{cluster}/api/jobs/{job}") as answer:
            assert json.load(answer)["status"] == "STOPPED"

    def test_plain_ray_job_submit(self, cluster, project):
        shutil.copy(ROOT / ".rayignore", project)
        (project / "pkg/fail.py").write_text("raise RuntimeError('no luck')\n")
        shutil.rmtree(project / ".git")
        for script, returncode in (("pkg/code.py", 0), ("pkg/fail.py", 1)):
            command = [BIN / "ray", "job", "submit", "--address", cluster, "--working-dir", ".", "--", "python", script]
            env = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")}
            result = subprocess.run(command, cwd=project, env=env, text=True, capture_output=True)
            assert result.returncode == returncode, result.stdout + result.stderr

    def test_a_training_as_a_job(self, cluster, tmp_path):
        """The documented command, from the checkout; its exit code and the job's status when it works and when not."""
        train = ["thinwire", "train", "--preset", "smoke", "--set", "data.synthetic.rows=8000"]
        where = ["--set", f"run.storage={tmp_path}/runs"]
        works = self.ray_job_submit(cluster, *train, *where, "--name", "job")
        assert works.returncode == 0 and "succeeded" in works.stdout, works.stdout + works.stderr
        assert (tmp_path / "runs" / "job" / "export" / "model.pt").is_file()
        fails = self.ray_job_submit(cluster, *train, "--data", "/no/such/data", *where)
        assert fails.returncode == 1 and "/no/such/data: no such data set" in fails.stdout + fails.stderr
        # Relative to a copy that Ray deletes: refused, since all results would be lost.
        lost = self.ray_job_submit(cluster, *train)
        assert lost.returncode == 1 and "run.storage: 'runs' would lie in the job's copy" in lost.stdout + lost.stderr

    def ray_job_submit(self, address: str, *entrypoint: str) -> subprocess.CompletedProcess:
        command = [BIN / "ray", "job", "submit", "--address", address, "--working-dir", ".", "--", *entrypoint]
        env = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")}
        return subprocess.run(command, cwd=ROOT, env=env, text=True, capture_output=True)

    def submitter(self, cluster: str, project: Path, env: dict[str, str]) -> subprocess.Popen:
        code = (
            "import pathlib, sys; from app.submit import submit; "
            "sys.exit(submit(sys.argv[1], pathlib.Path(sys.argv[2]), sys.argv[3:]))"
        )
        entrypoint = program("import time; print('started', flush=True); time.sleep(600)")
        env = {**env, "PYTHONPATH": str(ROOT)}
        command = [sys.executable, "-u", "-c", code, cluster, str(project), *entrypoint]
        return subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def wait_for_start(self, process: subprocess.Popen) -> str:
        job = ""
        for line in process.stdout:
            if line.startswith("job "):
                job = line.split()[1].rstrip(";")
            if line.startswith("started"):
                return job
        raise AssertionError(process.stderr.read())
