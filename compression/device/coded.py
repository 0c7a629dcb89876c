"""What chain huffman needs on a device besides rows: working memory of sections, and the tables both sides know."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from compression.device.backend import THREADS, Backend
from compression.device.records import HISTOGRAM, Plan
from compression.predict import MOST_PIVOTS, SAMPLE, WIDEST
from compression.shapes import TILE
from compression.tables import family
from compression.wire import HUFFMAN

_ARRAYS = (
    "left", "symbols", "sample", "covariance", "factor", "model", "choice", "bits", "bit_starts", "escapes", "tiles",
    "reference_symbols", "histogram", "codebook", "reference_bits", "reference_extra", "chunk_starts", "decoding",
)  # fmt: skip
CODED = np.dtype([("rows", "<i8"), ("first_unit", "<i8")] + [(name, "<u8") for name in _ARRAYS])
CODED_STATE_BYTES = 32
_FAMILY = ("known", "paired", "codes", "costs", "means", "decoding")
_CHUNK = 512
"""Symbols of references that are a chunk of a Huffman message."""


def upload_family(backend: Backend, address: int) -> int:
    """Write the tables of the family at an address, of which `family_bytes` are needed; where the kernels find them."""
    parts = _family_arrays()
    at = address + 8 * len(parts)
    addresses = []
    for part in parts:
        addresses.append(at)
        at += -(-part.nbytes // 8) * 8
    backend.upload(address, np.array(addresses, np.uint64))
    for start, part in zip(addresses, parts, strict=True):
        backend.upload(start, part)
    return address


def family_bytes() -> int:
    """Bytes that `upload_family` writes."""
    return sum(8 + -(-part.nbytes // 8) * 8 for part in _family_arrays())


def _family_arrays() -> list[NDArray[np.generic]]:
    found = family()
    return [np.ascontiguousarray(getattr(found, name)) for name in _FAMILY]


class Layout(NamedTuple):
    """Working memory of sections of chain huffman.

    Attributes:
        records: CODED, with addresses from 0 on, but for the histograms.
        of_rows: int64, for each of the plan's rows the number of its record or -1.
        units: uint32, the record of each column of each tile.
        size: bytes of the memory.
    """

    records: NDArray[np.void]
    of_rows: NDArray[np.int64]
    units: NDArray[np.uint32]
    size: int

    def place(self, plan: Plan, address: int) -> None:
        """Make addresses absolute, when those of the plan's rows are."""
        for name in _ARRAYS:
            self.records[name] += np.uint64(address)
        self.records["histogram"] = plan.rows["table"][self.records["rows"]] - np.uint64(4 * HISTOGRAM)


def lay_out(plan: Plan, *, every: bool) -> Layout:
    """The layout for a plan; `every`: of all sections that have rows, to decode them, else of those that ask for the
    chain."""
    rows = plan.rows
    chosen = np.ones(rows.size, np.bool_) if every else plan.sections["chain"][rows["section"]] == HUFFMAN
    which = np.flatnonzero(chosen)
    found = np.zeros(which.size, CODED)
    if not which.size:
        return Layout(found, np.full(rows.size, -1, np.int64), np.empty(0, np.uint32), 0)
    found["rows"] = which
    sizes = _sizes(rows["rows"][which], rows["columns"][which])
    at = 0
    for name, size in sizes.items():
        size = -(-size // 8) * 8
        found[name] = at + size.cumsum() - size
        at += int(size.sum())
    units = sizes["bits"] // 4
    found["first_unit"] = units.cumsum() - units
    owners = np.repeat(np.arange(which.size, dtype=np.uint32), units)
    return Layout(found, np.where(chosen, chosen.cumsum() - 1, -1), owners, at)


def _sizes(rows: NDArray[np.int64], columns: NDArray[np.int64]) -> dict[str, NDArray[np.int64]]:
    """Bytes of each array of each section."""
    tile = np.minimum(np.maximum(TILE // np.maximum(columns, 1), 64), 4096)
    tiles = -(-rows // tile)
    square = np.where(columns <= WIDEST, columns, 0) ** 2
    compared = columns > 1
    return {
        "left": 2 * rows * columns,
        "symbols": rows * columns,
        "sample": 2 * SAMPLE * columns,
        "covariance": 8 * square,
        "factor": 8 * MOST_PIVOTS * columns,
        "model": 2 * (2 + MOST_PIVOTS + (1 + MOST_PIVOTS) * columns),
        "choice": columns,
        "bits": 4 * tiles * columns,
        "bit_starts": 4 * tiles * columns,
        "escapes": 4 * tiles * columns,
        "tiles": 4 * tiles,
        "reference_symbols": rows * compared,
        "codebook": 4 * HISTOGRAM * compared,
        "reference_bits": 4 * -(-rows // THREADS) * compared,
        "reference_extra": 4 * -(-rows // THREADS) * compared,
        "chunk_starts": 4 * -(-rows // _CHUNK) * compared,
        "decoding": 2 * 4096 * compared,
    }
