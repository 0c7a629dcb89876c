"""What a user says about the exchange: per table which path it takes, and per direction under which bound."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

from compression.codec import Bound, Relative
from compression.exchange.transport import Schedule, check_schedule
from compression.wire import CHAINS

Path = Literal["auto", "row", "pooled", "torchrec"]


@dataclass(frozen=True)
class Direction:
    """How the values of one table travel in one direction."""

    bound: Bound = 0.0
    """Largest error of a value: absolute, or `Relative` to the range of the values of the table in a message. 0 = bit
    for bit."""
    codec: str = "auto"
    """`auto` (by the cost law), or a chain of the codec: raw (off), lossless, bitpack, huffman, rans, dedup."""

    def __post_init__(self) -> None:
        share = self.bound.share if isinstance(self.bound, Relative) else self.bound
        if not 0 <= share < float("inf"):
            raise ValueError(f"a bound is at least 0 and finite, not {share}")
        if self.codec != "auto" and self.codec not in CHAINS:
            raise ValueError(f"no codec {self.codec!r}: auto, {', '.join(CHAINS)}")


@dataclass(frozen=True)
class TablePolicy:
    """How one table is exchanged."""

    path: Path = "auto"
    """row: distinct ids only, pooled by the rank that asked; pooled: the owner pools, one row a bag travels; torchrec:
    TorchRec's own exchange, untouched; auto: the cheaper of the first two, see `choose`."""
    forward: Direction = Direction(Relative(0.01))
    """Rows, or pooled rows, from the owner."""
    backward: Direction = Direction(Relative(0.005))
    """Gradients, back to the owner. A relative bound is relative to the range of the gradients of the table in the
    message, so it follows their scale."""
    bag_length: float = 1.0
    """Expected ids in a bag, for `auto`."""

    def __post_init__(self) -> None:
        if self.path not in get_args(Path):
            raise ValueError(f"no path {self.path!r}: {', '.join(get_args(Path))}")
        if not self.bag_length >= 0:
            raise ValueError(f"bag_length is at least 0, not {self.bag_length}")
        for direction in (self.forward, self.backward):
            if not isinstance(direction, Direction):
                raise TypeError(f"forward and backward are a Direction, not {direction!r}")


@dataclass(frozen=True)
class ExchangeConfig:
    """The thin exchange of one model.

    >>> config = ExchangeConfig(tables={"user": TablePolicy(forward=Direction(0.0, "lossless"))})
    >>> config.of("user").forward.bound, config.of("item").forward.bound
    (0.0, Relative(share=0.01))
    """

    default: TablePolicy = TablePolicy()
    """Of tables that are not in `tables`."""
    tables: Mapping[str, TablePolicy] = field(default_factory=dict)
    """By name of the table; a name that no table of the model has is an error at the first batch."""
    batch_size: int = 2048
    """Rows a rank takes in a step, about; for paths chosen by `auto`."""
    link: float = 125e6
    """Bytes per second of a rank's link; what the codec `auto` decides by."""
    timeout_s: float = 300.0
    """A rank that waits longer for a message raises `ExchangeError`."""
    chunk_bytes: int = 1 << 20
    """Raw bytes of a message; what is more goes in several, so that one is encoded while another is on the wire."""
    schedule: Schedule = "auto"
    """duplex: all receives posted before any send, for gloo; all_to_all: the group's own, for NCCL."""
    stochastic: bool = False
    """Round gradients at random to one of the two nearest codes, so that their expected value is the true one."""
    verify: bool = False
    """Decode each message where it was encoded and raise unless every value is within its bound. For debugging."""

    def __post_init__(self) -> None:
        for name in ("batch_size", "link", "timeout_s", "chunk_bytes"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} is above 0, not {getattr(self, name)}")
        check_schedule(self.schedule)
        for table, policy in {"default": self.default, **self.tables}.items():
            if not isinstance(policy, TablePolicy):
                raise TypeError(f"{table} has a TablePolicy, not {policy!r}")

    def of(self, table: str) -> TablePolicy:
        return self.tables.get(table, self.default)

    @classmethod
    def lossless(cls, **others: object) -> ExchangeConfig:
        """Rows and gradients bit for bit."""
        exact = TablePolicy(forward=Direction(), backward=Direction())
        return cls(default=exact, **others)  # type: ignore[arg-type]
