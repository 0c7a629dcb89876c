"""What is measured: contenders, link rates, batches and dimensions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from benchmarks.lab import links
from pipelines.errors import UserError

BASELINE = "TorchRec fp32"
DUPLEX = "TorchRec fp32, duplex"
LIMIT = "comm-free limit"
THIN = "thin"
EXCHANGES: dict[str, list[str]] = {
    BASELINE: ["exchange.codec=none"],
    DUPLEX: ["exchange.codec=none", "exchange.schedule=duplex"],
    "QComms fp16": ["exchange.codec=fp16"],
    "QComms bf16": ["exchange.codec=bf16"],
    "QComms fp8": ["exchange.codec=fp8"],
    "QComms int8": ["exchange.codec=int8"],
    THIN: ["exchange.codec=thin", "exchange.dense=thin"],
}
"""Contenders by name, each with what its configuration changes. A device may refuse some."""
SHARE_LOW, SHARE_HIGH = 0.60, 0.65
"""Share of a step that the all-to-all takes on the cluster of arXiv 2407.04272: the paper point."""


@dataclass(frozen=True)
class Plan:
    """What the ranks do, the same on all."""

    rates: tuple[str, ...]
    """Link rates such as `50mbit`, or `none` for the link as it is."""
    grid: tuple[tuple[int, int], ...]
    """(rows a rank and step, embedding dimension)."""
    rounds: int
    """Windows of each contender in a setting; they take turns."""
    window_s: float
    """Aimed length of a window; a window has at least `least_steps` steps."""
    least_steps: int
    profiled_steps: int
    link_command: str | None
    """Shell command that sets the rate of all links, with {rate} in it."""
    paper_point: bool
    """Look for the link rate at which the baseline spends 60 to 65 % of a step in all-to-all, and measure there."""


QUICK: dict[str, Any] = {"rounds": 3, "window_s": 0.3, "least_steps": 3, "profiled_steps": 3}
FULL: dict[str, Any] = {"rounds": 5, "window_s": 0.7, "least_steps": 3, "profiled_steps": 4}


def parse_grid(text: str) -> tuple[tuple[int, int], ...]:
    """`1024x16,512x64` -> ((1024, 16), (512, 64)).

    Raises:
        UserError: it is something else.
    """
    try:
        pairs = [tuple(int(n) for n in part.split("x")) for part in text.split(",")]
        if not all(len(p) == 2 and min(p) > 0 for p in pairs):
            raise ValueError
    except ValueError:
        raise UserError(f"'{text}' is no list of BATCHxDIM", where="--grid", fix="for example 1024x16,512x64") from None
    return tuple((p[0], p[1]) for p in pairs)


def bits_per_second(rate: str) -> float:
    """Of `50mbit` or `1gbit`; infinite for `none`.

    Raises:
        UserError: it is something else, or outside 1mbit to 100gbit.
    """
    bits = links.bits_per_second(rate, where="--rates")
    return float("inf") if bits is None else bits


def rate_text(bits: float) -> str:
    """The inverse, held within the limits."""
    bits = max(links.LEAST_RATE, min(links.MOST_RATE, bits))
    return f"{bits / 1e6:.4g}mbit"


def windows(plan: Plan, contenders: int) -> int:
    """That all settings of the plan take together."""
    settings = len(plan.grid) * len(plan.rates) + plan.paper_point
    return settings * plan.rounds * contenders
