"""Which chain codes a table: the one that takes the least time by the cost law, measured on the table itself.

Time per raw byte on a link of R bytes per second: 1 / (ratio * R) + 1 / encode + 1 / decode, and 1 / R raw (arXiv
2407.04272, section 4.3, has the law for one table). A table is tried when it is first seen, and then every `EVERY`
messages, a few tables a message at most, so that the cost of trying is spread thin.
"""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from compression import message
from compression.message import CHAIN, COLUMNS, END, ROWS, SIZE, SLACK, START, STOP, TARGET, WIDTH
from compression.quantize import grid, wire_bound
from compression.wire import BITPACK, DEDUP, HUFFMAN, RANS, RAW
from compression.workspace import Workspace

if TYPE_CHECKING:
    from compression.inputs import Source

EVERY = 1000
"""Messages from one trial of a table to the next."""
HYSTERESIS = 0.95
"""Another chain is taken when it takes less than this share of the time of the one in use."""
MOST_BYTES = 1 << 21
"""Of a table that a trial takes, in whole rows."""
EVICTING_BYTES = 1 << 22
"""Written before each run of a trial. Between two messages a step of training goes through the caches, and a chain that
looks up tables then finds none of them there: measured on one message after the other, Huffman seems thrice as fast."""
SMALL_BYTES = 1 << 16
"""A trial takes as long as some messages of a table smaller than this, so such tables of one shape share one."""


Key = tuple[int, int, int, int, bool]
"""A table: its place in the messages, its columns, about how many rows, about which bound, and whether stochastic. Of
small tables place and bound are 0."""


class Trial(NamedTuple):
    """What a chain did on a table."""

    ratio: float
    encode: float
    decode: float
    """Raw bytes per second."""

    def cost(self, link: float) -> float:
        """Seconds per raw byte on a link of so many bytes per second."""
        return 1 / (self.ratio * link) + 1 / self.encode + 1 / self.decode


class Selector:
    """Chooses a chain for each table of a sequence of messages.

    Args:
        link: bytes per second.
        exact: whether a table may be sent raw where that is faster. If not, only where no chain makes it smaller: what
            is decoded then does not depend on the clock, since all lossy chains send the same codes.

    Attributes:
        chosen: chain of each table; trials: what each chain did when the table was last tried.
    """

    def __init__(self, link: float, *, exact: bool = True) -> None:
        self.link, self._exact = link, exact
        self.chosen: dict[Key, int] = {}
        self.trials: dict[Key, dict[int, Trial]] = {}
        self._seen: dict[Key, int] = {}
        self._since = 0
        self._encoder, self._decoder = Workspace(decode=False), Workspace(decode=True)

    def choose(self, place: int, source: Source, bound: float, stochastic: bool = False) -> int:
        """The chain for the table at this place of the message, whose bound is positive."""
        if 4 * source.size < SMALL_BYTES:
            table = _small(source.rows, source.columns, stochastic)
        else:
            table = place, source.columns, source.rows.bit_length(), math.frexp(bound)[1], stochastic
        if self._is_due(table) or table not in self.chosen:
            self._seen[table] = self._since = 0
            grids = np.array([grid(wire_bound(bound), stochastic)], np.float32)
            self.decide(table, try_chains(source, grids, self._encoder, self._decoder))
        return self.chosen[table]

    def _is_due(self, table: Key) -> bool:
        """Count a table, and tell whether it is to be tried again."""
        self._since += 1
        self._seen[table] = self._seen.get(table, 0) + 1
        return self._seen[table] > EVERY and self._since > EVERY // 16

    def known(self, rows: int, columns: int) -> int | None:
        """The chain of a small table of this shape; None if it is to be tried, or is not small."""
        table = _small(rows, columns, False)
        if 4 * rows * columns >= SMALL_BYTES or self._is_due(table):
            return None
        return self.chosen.get(table)

    def decide(self, table: Key, trials: dict[int, Trial]) -> None:
        """Take the chain of the least cost; keep the one in use if that is nearly as good."""
        self.trials[table] = trials
        costs = {chain: trial.cost(self.link) for chain, trial in trials.items()}
        if self._exact or not costs:
            costs[RAW] = 1 / self.link
        best = min(costs, key=costs.__getitem__)
        current = self.chosen.get(table)
        if current is None or costs[best] < HYSTERESIS * costs.get(current, math.inf):
            self.chosen[table] = best


def _small(rows: int, columns: int, stochastic: bool) -> Key:
    return 0, columns, rows.bit_length(), 0, stochastic


def try_chains(source: Source, grids: NDArray[np.float32], encoder: Workspace, decoder: Workspace) -> dict[int, Trial]:
    """Encode and decode a table, or its first rows, by each lossy chain; grids: float32 [1, 3], see `quantize.grid`."""
    rows = min(source.rows, max(MOST_BYTES // source.row_bytes, 1))
    size, raw = rows * source.columns, rows * source.row_bytes
    plan = np.zeros((1, WIDTH), np.int64)
    words = np.empty(size + SLACK, np.uint32)
    out = np.empty(size, np.float32)
    shapes = [(rows, source.columns)]
    values = source.rows_as_values(0, rows, grids[0])
    address = values.__array_interface__["data"][0]
    others = np.zeros(EVICTING_BYTES, np.uint8)
    found = {}
    for chain in (BITPACK, DEDUP, HUFFMAN, RANS):
        encode, decode = [], []
        for _ in range(3):
            plan[0] = address, address, source.raw_address, raw, rows, source.columns, chain, 0
            others += 1
            start = time.perf_counter()
            message.encode_sections(plan, grids, encoder.of(shapes), words, 0)
            encode.append(time.perf_counter() - start)
            end, taken = int(plan[0, STOP]), int(plan[0, CHAIN])
            plan[0, [TARGET, START, END, SIZE]] = out.ctypes.data, 0, end, raw
            plan[0, [ROWS, COLUMNS, CHAIN]] = rows, source.columns, taken
            others += 1
            start = time.perf_counter()
            message.decode_sections(plan, grids[:, 0], decoder.of(shapes), words[:end])
            decode.append(time.perf_counter() - start)
        if taken == chain:
            found[chain] = Trial(raw / (4 * end + 20), raw / min(encode), raw / min(decode))
    return found
