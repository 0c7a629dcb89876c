"""What a cluster and a model cost, measured or assumed: all that the cost model does not count."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import numpy as np

Direction = Literal["rows", "gradients"]
CHAINS = ("bitpack", "huffman", "rans")
"""Lossy chains of the codec that the planner chooses from."""
EVERY = ""
"""Stands for all tables that were not measured."""


@dataclass(frozen=True)
class Coded:
    """Bytes of n values of a table in one message: `fixed_bytes + n * bits / 8`, where the bits are
    `bits_per_value * (n / at_values) ** (power - 1)`: under a relative bound gradients take fewer bits the more rows
    are in a message, for the largest of them sets the range."""

    fixed_bytes: float
    bits_per_value: float
    power: float = 1.0
    at_values: float = 1.0

    def bits(self, values: Any) -> Any:
        """Of each of so many values; below one value as of one."""
        return self.bits_per_value * (np.maximum(values, 1.0) / self.at_values) ** (self.power - 1)

    def size(self, values: Any, some: Any) -> Any:
        """Of so many values; some: chance that a message has any row of the table at all."""
        return self.fixed_bytes * some + values * self.bits(values) / 8


@dataclass(frozen=True)
class Chain:
    """Raw fp32 MB (10^6 bytes) per second that a rank encodes and decodes while it trains."""

    encode_mb_s: float
    decode_mb_s: float


@dataclass(frozen=True)
class Constants:
    """Each key with its unit. The defaults are of ranks on CPU with one core each (see docs/cost-model.md); measure
    yours with `thinwire calibrate`."""

    ranks: int = 2
    """That were measured together."""
    latency_us: float = 100.0
    """From the send of a small message to its receive."""
    goodput_mbit: float = 9_500.0
    """Payload that a rank sends while it receives as much."""
    message_us: float = 60.0
    """CPU time of a rank for sending one message and receiving one."""
    fixed_ms: float = 25.0
    """Of a step with the thin exchange: what does not depend on the batch, messages and coding left out."""
    sample_us: float = 25.0
    """Of a step for each row of a rank's batch: MLPs, lookups, update, removing duplicates and pooling."""
    local_fixed_ms: float = 12.0
    """The same of a step of TorchRec's fp32 exchange with local data: communication is free."""
    local_sample_us: float = 25.0
    overlap_us: float = 2.0
    """Of `sample_us`: backward pass of the bottom MLP, during which gradients travel."""
    lookup_gb_s: float = 1.0
    """Rows that a rank gathers from, or adds to, a table in memory."""
    hot_fixed_ms: float = 2.0
    """Of a step with hot rows: what splitting batches, sync and update take whatever their bytes. Assumed."""
    id_factor: float = 1.1
    """Bytes of ids over the entropy of their gaps."""
    id_list_bytes: float = 5.0
    """Of each list of ids among others."""
    spread: float = 0.25
    """Power of a row's lookups that the sum of its gradients goes with, see `cache.spread`; of the demo model."""
    sync_factor: float = 1.17
    """Bits of a gradient of a hot row in the sync over those that its lookups let expect; of the demo model."""
    dense_bits: float = 8.0
    """Of a gradient of the MLPs on the wire, by the thin exchange of dense gradients, at a batch of `dense_batch`;"""
    dense_batch: int = 2048
    dense_bits_a_doubling: float = 0.0
    """and so many fewer for each time that the batch doubles: the mean of more rows has a smaller range of noise."""
    chains: Mapping[str, Chain] = field(
        default_factory=lambda: {
            "bitpack": Chain(1500.0, 2500.0),
            "huffman": Chain(400.0, 900.0),
            "rans": Chain(200.0, 500.0),
        }
    )
    coded: Mapping[str, Mapping[str, Mapping[str, Coded]]] = field(
        default_factory=lambda: {
            "bitpack": {EVERY: {"rows": Coded(120.0, 6.0), "gradients": Coded(120.0, 6.0)}},
            "huffman": {EVERY: {"rows": Coded(180.0, 3.6), "gradients": Coded(180.0, 2.8)}},
            "rans": {EVERY: {"rows": Coded(200.0, 3.5), "gradients": Coded(200.0, 2.7)}},
        }
    )
    """By chain, table and direction, at the bounds of the run."""

    def of(self, chain: str, table: str, direction: Direction) -> Coded:
        """How a table is coded; bit for bit for `raw`, and nearly so for `lossless`."""
        if chain in ("raw", "lossless"):
            return Coded(20.0, 32.0 if chain == "raw" else 28.0)
        tables = self.coded[chain]
        return tables.get(table, tables[EVERY])[direction]

    def coding_s(self, chain: str, raw_bytes: Any) -> Any:
        """Seconds to encode and to decode so many bytes."""
        if chain in ("raw", "lossless"):
            chain = "bitpack"
        of = self.chains[chain]
        return raw_bytes * 1e-6 / of.encode_mb_s, raw_bytes * 1e-6 / of.decode_mb_s

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Constants:
        """From what `to_dict` gave.

        Raises:
            ValueError: a key that is none, or a number that is not finite or not positive.
        """
        values = dict(data)
        known = set(cls.__dataclass_fields__)
        if unknown := set(values) - known:
            raise ValueError(f"unknown: {', '.join(sorted(unknown))}")
        try:
            if "chains" in values:
                values["chains"] = {name: Chain(**of) for name, of in values["chains"].items()}
            if "coded" in values:
                values["coded"] = {
                    chain: {t: {way: Coded(**of) for way, of in ways.items()} for t, ways in tables.items()}
                    for chain, tables in values["coded"].items()
                }
            found = cls(**values)
        except (TypeError, AttributeError) as error:
            raise ValueError(str(error)) from error
        found.check()
        return found

    def check(self) -> None:
        """Raises ValueError for a number that cannot be."""
        numbers = {k: v for k, v in self.to_dict().items() if not isinstance(v, Mapping)}
        for name, speed in self.chains.items():
            numbers |= {f"{name} encode_mb_s": speed.encode_mb_s, f"{name} decode_mb_s": speed.decode_mb_s}
        if "bitpack" not in self.chains or set(self.coded) - set(self.chains):
            raise ValueError("chains need bitpack, and all that are in coded")
        for chain, tables in self.coded.items():
            if EVERY not in tables:
                raise ValueError(f"{chain} has no entry '' for tables that were not measured")
            for table, ways in tables.items():
                for way, of in ways.items():
                    name = f"{way} of {table or 'other tables'} by {chain}"
                    numbers |= {f"{key} of {name}": value for key, value in asdict(of).items()}
        for name, value in numbers.items():
            if not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
                raise ValueError(f"{name} is {value}")
        positive = [name for name in numbers if name.startswith("at_values")]
        for name in ("goodput_mbit", "lookup_gb_s", "ranks", *positive):
            if not numbers[name] > 0:
                raise ValueError(f"{name} is {numbers[name]}")
