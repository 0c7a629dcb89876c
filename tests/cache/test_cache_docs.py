"""The examples of docs/cache.md and of the docstrings run, and print what they say."""

from __future__ import annotations

import contextlib
import doctest
import importlib
import io
import re
from pathlib import Path

import pytest

from pipelines.options import CacheOptions
from tests.ranks import run_ranks

GUIDE = (Path(__file__).resolve().parents[2] / "docs" / "cache.md").read_text()


def run_guide() -> list[int | str]:
    text = "\n".join(re.findall(r"```python\n(.*?)```", GUIDE, re.S))
    examples = doctest.DocTestParser().get_doctest(text, {}, "cache.md", None, None)
    with contextlib.redirect_stdout(io.StringIO()) as said:
        failed = doctest.DocTestRunner().run(examples).failed
    return [len(examples.examples), failed, said.getvalue()]


def test_examples_of_the_guide() -> None:
    for count, failed, said in run_ranks(run_guide, 2):
        assert count > 15 and failed == 0, said


@pytest.mark.parametrize("name", ["adapt", "sketch", "tables"])
def test_examples_of_docstrings(name: str) -> None:
    found = doctest.testmod(importlib.import_module(f"cache.{name}"))
    assert found.attempted and not found.failed


def test_all_settings_are_in_the_guide() -> None:
    assert not [key for key in CacheOptions.model_fields if f"cache.{key}" not in GUIDE]
