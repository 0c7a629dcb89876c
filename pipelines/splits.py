"""Which rows go to which split: a function of a row's number alone."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from pipelines.errors import UserError
from pipelines.kernel import kernel

Rows = slice | np.ndarray
"""Some rows of a segment: a slice, or a bool mask [rows]."""


# Rows up to which chance may leave a split empty, and drawing them all to see it costs nothing.
_SMALL = 1 << 16


@dataclass(frozen=True)
class Split:
    """Rows numbered in the order of the input files, bad lines left out."""

    rule: str
    """For people, as in the manifest."""
    names: tuple[str, ...]
    first_valid: int = -1
    """Rows from here on are valid; -1: by chance."""
    share: float = 0.0
    """Share of valid rows, by chance."""
    seed: int = 0

    def select(self, start: int, rows: int) -> dict[str, Rows]:
        """For each split its rows among the `rows` rows from row `start` on."""
        if len(self.names) == 1:
            return {self.names[0]: slice(0, rows)}
        if self.first_valid >= 0:
            cut = min(max(self.first_valid - start, 0), rows)
            return {"train": slice(0, cut), "valid": slice(cut, rows)}
        mask = np.empty(rows, np.bool_)
        _draw(start, np.uint64(self.seed), np.uint64(int(self.share * 2**53) << 11), mask)
        return {"train": ~mask, "valid": mask}


def _one_sided(split: Split, total: int) -> bool:
    valid = split.select(0, total)["valid"]
    assert isinstance(valid, np.ndarray)
    return not valid.any() or bool(valid.all())


def parse_split(text: str) -> tuple[str, float]:
    """("last" | "random", share), ("files", count) or ("none", 0).

    Raises:
        UserError: not one of these.
    """
    if text == "none":
        return "none", 0.0
    match = re.fullmatch(r"(last|random):(0?\.\d+)|files:([1-9]\d*)", text)
    if match is None or (match[2] and float(match[2]) == 0.0):
        raise UserError(f"no such split '{text}'", fix="last:0.1, random:0.1, files:1 or none")
    return (match[1], float(match[2])) if match[1] else ("files", float(match[3]))


def decide(text: str, seed: int, rows_of_files: list[int]) -> Split:
    """The split for input files with these numbers of rows.

    Raises:
        UserError: a split would be empty.
    """
    kind, amount = parse_split(text)
    total = sum(rows_of_files)
    if kind == "none":
        return Split(f"none: all {total:,} rows are train", ("train",))
    if kind == "random":
        rule = f"random:{amount:g}: valid rows drawn one by one, seed {seed}"
        split = Split(rule, ("train", "valid"), share=amount, seed=seed)
        if total <= _SMALL and _one_sided(split, total):
            raise UserError(f"split {text} of {total:,} rows leaves a split empty", fix="take another seed or share")
        return split
    if kind == "files":
        first = sum(rows_of_files[: max(0, len(rows_of_files) - int(amount))])
    else:
        first = total - int(total * amount)
    if first in (0, total):
        fix = f"there are {total:,} rows in {len(rows_of_files)} file(s); choose another split"
        raise UserError(f"split {text} leaves no rows to {'train' if first == 0 else 'valid'}", fix=fix)
    return Split(f"{text}: train = first {first:,} rows, valid = last {total - first:,}", ("train", "valid"), first)


@kernel
def _draw(start: int, seed: np.uint64, threshold: np.uint64, out: np.ndarray) -> None:
    """SplitMix64 of (seed, row number) below the threshold."""
    for i in range(out.size):
        z = (seed * np.uint64(0xD1342543DE82EF95)) + np.uint64(start + i + 1) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        out[i] = (z ^ (z >> np.uint64(31))) < threshold
