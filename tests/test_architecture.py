"""Imports go one way: app -> pipelines -> {cache, compression}."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
OWN = {"app", "pipelines", "cache", "compression"}
MAY_IMPORT = {
    "app": OWN,
    "pipelines": {"pipelines", "cache", "compression"},
    "cache": {"cache"},
    "compression": {"compression"},
}
FOREIGN = {"ray", "mlflow", "cupy"}
# What a folder may import of Ray, MLflow and CuPy; a file name narrows it further.
MAY_IMPORT_FOREIGN = {"app": {"ray", "mlflow"}, "pipelines": {"ray"}, "cache": set(), "compression": {"cupy"}}
ONLY_IN = {("pipelines", "ray"): {"ray_tasks.py", "prepare.py"}, ("compression", "cupy"): {"gpu.py"}}


def imported(file: Path) -> set[str]:
    tree = ast.parse(file.read_text())
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and not node.level}
    return {name.partition(".")[0] for name in names}


@pytest.mark.parametrize("folder", sorted(OWN))
def test_imports_go_one_way(folder: str) -> None:
    files = sorted((ROOT / folder).rglob("*.py"))
    assert files
    for file in files:
        names = imported(file)
        assert names & OWN <= MAY_IMPORT[folder], file
        assert names & FOREIGN <= MAY_IMPORT_FOREIGN[folder], file
        for name in names & FOREIGN:
            assert file.name in ONLY_IN.get((folder, name), {file.name}), f"{file} imports {name}"


def test_a_breach_is_seen(tmp_path: Path) -> None:
    file = tmp_path / "x.py"
    file.write_text("def f():\n    from app.config import RunConfig\n    import ray.train\n")
    assert imported(file) == {"app", "ray"}
