"""Functions compiled for compiled callers alone have no entry for Python: a call from there would crash the process."""

import ast
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[2] / "compression"


def decorators(function: ast.FunctionDef) -> set[str]:
    return {node.id for node in function.decorator_list if isinstance(node, ast.Name)}


def inner_functions(trees: dict[str, ast.Module]) -> set[tuple[str, str]]:
    """(module, name)."""
    return {
        (module, node.name)
        for module, tree in trees.items()
        for node in tree.body
        if isinstance(node, ast.FunctionDef) and "inner" in decorators(node)
    }


def calls_from_python(module: str, tree: ast.Module, inner: set[tuple[str, str]]) -> list[str]:
    """The calls of inner functions in code that is not compiled."""
    known = {name: (module, name) for _, name in inner}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                known[alias.asname or alias.name] = (node.module.rpartition(".")[2], alias.name)
    found = []
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.FunctionDef) and decorators(node) & {"inner", "kernel"}:
            continue
        if isinstance(node, ast.Call):
            if isinstance(node.func, ast.Name):
                called = known.get(node.func.id)
            elif isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Name):
                called = (node.func.value.id, node.func.attr)
            else:
                called = None
            if called in inner:
                found.append(f"{module}.py, line {node.lineno}: {ast.unparse(node.func)}")
        waiting += ast.iter_child_nodes(node)
    return found


def test_python_calls_no_function_that_only_compiled_ones_may_call():
    trees = {file.stem: ast.parse(file.read_text()) for file in FOLDER.glob("*.py")}
    assert "kernel" in trees
    inner = inner_functions(trees)
    assert not [call for module, tree in trees.items() for call in calls_from_python(module, tree, inner)]


def test_such_a_call_is_seen():
    source = "@inner\ndef f(): pass\n@kernel\ndef g(): f()\ndef h(): f()\ndef i(): other.f()\n"
    trees = {
        "one": ast.parse(source),
        "two": ast.parse("from compression.one import f\nfrom compression import one\nf()\none.f()\n"),
    }
    inner = inner_functions(trees)
    assert inner == {("one", "f")}
    assert calls_from_python("one", trees["one"], inner) == ["one.py, line 5: f"]
    assert sorted(calls_from_python("two", trees["two"], inner)) == ["two.py, line 3: f", "two.py, line 4: one.f"]
