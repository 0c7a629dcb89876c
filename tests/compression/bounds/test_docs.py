"""The examples of docs/bounds.md and of the docstrings run, and print what they say."""

from __future__ import annotations

import doctest
import importlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


def test_examples_of_the_guide() -> None:
    text = (ROOT / "docs" / "bounds.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", text, re.S)
    examples = doctest.DocTestParser().get_doctest("\n".join(blocks), {}, "bounds.md", None, None)
    assert examples.examples
    assert doctest.DocTestRunner().run(examples).failed == 0


@pytest.mark.parametrize("name", ["allocate", "closed_loop", "schedule"])
def test_examples_of_docstrings(name: str) -> None:
    assert doctest.testmod(importlib.import_module(f"compression.bounds.{name}")).failed == 0
