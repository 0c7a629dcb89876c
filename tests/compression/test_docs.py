"""The examples of docs/codec.md and of the package's docstrings run, and print what they say."""

import doctest
import importlib
import pkgutil
import re
from pathlib import Path

import pytest

import compression

ROOT = Path(__file__).resolve().parents[2]
MODULES = ["compression", *(f"compression.{module.name}" for module in pkgutil.iter_modules(compression.__path__))]


def test_examples_of_the_guide() -> None:
    text = (ROOT / "docs" / "codec.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", text, re.S)
    assert len(blocks) >= 5
    # One test of all blocks: later ones use names of earlier ones.
    examples = doctest.DocTestParser().get_doctest("\n".join(blocks), {}, "codec.md", None, None)
    assert examples.examples
    assert doctest.DocTestRunner().run(examples).failed == 0


@pytest.mark.parametrize("name", MODULES)
def test_examples_of_docstrings(name: str) -> None:
    module = importlib.import_module(name)
    assert doctest.testmod(module).failed == 0


def test_public_names_have_docstrings_and_the_main_ones_examples() -> None:
    for name in compression.__all__:
        if name != "Bound":
            assert getattr(compression, name).__doc__, name
    for name in ("Codec", "Relative", "encode_ids", "decode_ids", "inspect"):
        assert ">>>" in getattr(compression, name).__doc__, name
