"""Thinwire's codec as a contender."""

from __future__ import annotations

from typing import Any

from benchmarks.codec.peers import Array
from compression import Codec

OURS, FAST = "thinwire", "thinwire at 10 Gbit/s"
"""The chains that the codec chooses, each table its own, for a link of 100 Mbit/s and for a fast one."""
BITPACK = "thinwire bitpack"
CHAINS = {
    OURS: "auto",
    FAST: "auto",
    "thinwire rANS": "rans",
    "thinwire Huffman": "huffman",
    "thinwire dedup": "dedup",
    BITPACK: "bitpack",
}
LINKS = {FAST: 1.25e9}
SLOW_LINK = 12.5e6
"""Bytes per second."""


class Thinwire:
    """All tables of a call in one payload.

    Args:
        name: one of `CHAINS`.
    """

    bounded = True

    def __init__(self, name: str = OURS, threads: int = 1) -> None:
        self.name, self._chain = name, CHAINS[name]
        self._codec = Codec(threads=threads, link=LINKS.get(name, SLOW_LINK))

    def encode(self, arrays: list[Array], bounds: list[float]) -> list[Any]:
        return [self._codec.encode(arrays, bounds, chain=self._chain)]

    def decode(self, messages: list[Any], outs: list[Array]) -> None:
        self._codec.decode(messages[0], outs)
