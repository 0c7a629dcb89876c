"""Thinwire's codec as a contender."""

from __future__ import annotations

from typing import Any

from benchmarks.codec.peers import Array
from compression import Codec

OURS = "thinwire"
"""The chain that the codec chooses."""
BITPACK = "thinwire bitpack"
CHAINS = {OURS: "auto", BITPACK: "bitpack", "thinwire Huffman": "huffman", "thinwire rANS": "rans"}


class Thinwire:
    """All tables of a call in one payload.

    Args:
        name: one of `CHAINS`.
    """

    bounded = True

    def __init__(self, name: str = OURS, threads: int = 1) -> None:
        self.name, self._chain, self._codec = name, CHAINS[name], Codec(threads=threads)

    def encode(self, arrays: list[Array], bounds: list[float]) -> list[Any]:
        return [self._codec.encode(arrays, bounds, chain=self._chain)]

    def decode(self, messages: list[Any], outs: list[Array]) -> None:
        self._codec.decode(messages[0], outs)
