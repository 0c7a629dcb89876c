"""The doctor on this machine, and on machines that are broken in known ways."""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from app import doctor

ROOT = Path(doctor.__file__).parent.parent
SYMBOL = "/x/fbgemm_gpu_py.so: undefined symbol: _ZN3c1017RegisterOperatorsD1Ev"


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A folder that comes first on the path, here and in subprocesses."""
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setenv("PYTHONPATH", str(folder))
    return folder


def package(site: Path, name: str, code: str) -> None:
    (site / name).mkdir()
    (site / name / "__init__.py").write_text(code)


def wheel(site: Path, name: str, version: str) -> None:
    info = site / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")


@pytest.mark.slow
def test_this_machine_is_fine(tmp_path, capsys, monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    checks = doctor.diagnose(tracking_uri=f"sqlite:///{tmp_path}/m.db", storage_path=str(tmp_path / "runs"))
    assert [c.name for c in checks if not c.ok] == []
    assert len(checks) == 9
    doctor.print_checks(checks)
    assert "training packages" in capsys.readouterr().out
    assert not list(tmp_path.iterdir())  # a doctor changes nothing


def test_fixes_are_printed(capsys):
    doctor.print_checks([doctor.Check("x", False, "a [thing]", "b", "do [this] now")])
    assert "x: do [this] now" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "text"),
    [
        (f"raise OSError({SYMBOL!r})", "undefined symbol"),
        ("raise ModuleNotFoundError(\"No module named 'fbgemm_gpu'\")", "No module named 'fbgemm_gpu'"),
        ("import os; os.abort()", "exit code -6"),
        ("", "No module named"),  # half installed
    ],
)
def test_fbgemm_for_another_torch_is_told(site, code, text):
    # pytorch/FBGEMM#2938
    package(site, "fbgemm_gpu", code)
    check = doctor.check_training_packages("cpu")
    assert not check.ok and text in check.found and check.fix == "make setup DEVICE=cpu"
    assert "torch 2.13.0" in check.found and check.needed == "torch 2.13.*, torchrec 1.8.*, fbgemm-gpu 1.8.*"


@pytest.mark.slow
def test_training_refuses_in_the_same_words(site):
    package(site, "fbgemm_gpu", f"raise OSError({SYMBOL!r})")
    program = """
import app.doctor, app.preflight, app.run_guard, app.submit, app.tracking, app.tracking_model
from pipelines.errors import UserError
try:
    app.doctor.require_training_stack()
except UserError as error:
    print(error)
"""
    env = {**os.environ, "PYTHONPATH": f"{site}{os.pathsep}{ROOT}"}
    told = subprocess.run([sys.executable, "-c", program], env=env, text=True, capture_output=True, check=True).stdout
    check = doctor.check_training_packages("cpu")
    assert told.strip() == f"training packages: {check.found}; needed: {check.needed} ({check.fix})"


def test_older_fbgemm_is_told(site, monkeypatch):
    wheel(site, "fbgemm-gpu", "1.7.0")
    monkeypatch.setattr(doctor, "IMPORT_TRIO", "pass")
    check = doctor.check_training_packages("cpu")
    assert not check.ok and "fbgemm-gpu 1.7.0" in check.found


def test_cpu_wheel_of_fbgemm_does_not_do_for_gpus(monkeypatch):
    monkeypatch.setattr(doctor, "IMPORT_TRIO", "pass")
    check = doctor.check_training_packages("cuda")
    assert not check.ok and "CPU wheel" in check.found and check.fix == "make setup DEVICE=cuda"


def test_two_cupy_wheels(site):
    # cupy/cupy#5032
    wheel(site, "cupy-cuda12x", "13.6.0")
    wheel(site, "cupy-cuda13x", "14.0.0")
    check = doctor.check_cupy("cpu", [str(site)])
    assert not check.ok and check.found == "cupy-cuda12x and cupy-cuda13x side by side"
    assert "pip uninstall -y cupy-cuda12x cupy-cuda13x" in check.fix


@pytest.mark.parametrize(
    "code",
    ["raise ImportError('libcuda.so.1: cannot open')", "raise RuntimeError('cudaErrorInsufficientDriver: too old')"],
)
def test_cupy_without_a_driver(site, code):
    wheel(site, "cupy-cuda13x", "14.0.0")
    package(site, "cupy", code)
    cpu, cuda = doctor.check_cupy("cpu", [str(site)]), doctor.check_cupy("cuda", [str(site)])
    assert cpu.ok and "cupy-cuda13x without a usable driver" in cpu.found
    assert not cuda.ok and "driver" in cuda.fix


def test_no_cupy(site):
    assert doctor.check_cupy("cpu", [str(site)]).ok
    assert doctor.check_cupy("cuda", [str(site)]).fix == "make setup DEVICE=cuda"


def test_extras_hold_one_cupy_wheel():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = [r for extra in project["optional-dependencies"].values() for r in extra] + project["dependencies"]
    assert len({re.split(r"[=<>\[]", r)[0] for r in named if r.startswith("cupy")}) == 1


@pytest.mark.slow
def test_no_visible_device(monkeypatch):
    # ray-project/ray#37212: Ray empties the variable on workers without GPUs.
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    cpu, cuda = doctor.check_devices("cpu"), doctor.check_devices("cuda")
    assert cpu.ok and "0 GPUs (CUDA_VISIBLE_DEVICES='')" in cpu.found
    assert not cuda.ok and "CUDA_VISIBLE_DEVICES" in cuda.fix


def test_gloo(monkeypatch):
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "^lo")
    check = doctor.check_gloo()
    assert not check.ok and "NCCL's syntax" in check.found and "GLOO_SOCKET_IFNAME=" in check.fix
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    assert doctor.check_gloo().ok


def test_tracking(tmp_path):
    refused = doctor.check_tracking(str(tmp_path))
    assert not refused.ok and f"sqlite:///{tmp_path}/mlflow.db" in refused.fix
    dead = doctor.check_tracking("http://u:secret@127.0.0.1:9")
    assert not dead.ok and dead.found == "http://u:***@127.0.0.1:9: [Errno 111] Connection refused"
    unwritable = doctor.check_tracking("sqlite:////proc/m.db")
    assert not unwritable.ok
    fresh = doctor.check_tracking(f"sqlite:///{tmp_path}/deep/m.db")
    assert fresh.ok and not (tmp_path / "deep").exists()


def test_storage(tmp_path, monkeypatch):
    assert doctor.check_storage(str(tmp_path / "a/b")).ok and not (tmp_path / "a").exists()
    assert not doctor.check_storage("/proc/runs").ok
    monkeypatch.setattr(doctor, "FREE_STORAGE", 1 << 60)
    full = doctor.check_storage(str(tmp_path))
    assert not full.ok and str(tmp_path) in full.fix


def test_ray_address_that_nobody_listens_on(monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:9")
    check = doctor.check_ray()
    assert not check.ok and "127.0.0.1:9" in check.found and "unset RAY_ADDRESS" in check.fix
    monkeypatch.setenv("RAY_ADDRESS", "auto")
    assert doctor.check_ray().ok


def test_a_failing_check_does_not_cost_the_others():
    check = doctor._guarded("x", lambda: 1 / 0)
    assert not check.ok and "division" in check.found
