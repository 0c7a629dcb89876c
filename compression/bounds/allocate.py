"""Bounds by table: what each may cost in loss, so that all together send the fewest bytes.

Minimise the sum of bytes over tables such that the sum of harm stays within a budget. Where bounds are free, the best
ones make every table lose the same for the last byte that it saves (Lagrange); a table's curve says what it sends and
what it harms at some bounds, and of these the one is taken that has the least bytes + price * harm, at the price at
which the budget is just kept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

_HALVINGS = 100
_NOTHING = 1e-12
"""Of the largest harm: a price for so little would overflow."""
CLASSES = {"tight": 0.01, "base": 0.03, "loose": 0.05}
"""Relative bounds of arXiv 2407.04272, section 5."""


@dataclass(frozen=True)
class Curve:
    """A table in one direction: at each of some relative bounds, ascending, what a rank sends in a step and what it
    harms."""

    bounds: tuple[float, ...]
    bytes: tuple[float, ...]
    harm: tuple[float, ...]
    """Expected loss that is lost, or whatever the budget is of; never negative."""

    def __post_init__(self) -> None:
        if not len(self.bounds) == len(self.bytes) == len(self.harm) > 0:
            raise ValueError("a curve has a number of bytes and a harm for each bound")
        if list(self.bounds) != sorted(set(self.bounds)):
            raise ValueError("the bounds of a curve ascend")

    def at(self, bound: float) -> tuple[float, float]:
        """Bytes and harm at a bound, between its neighbours by straight lines over the logarithm of the bound; harm by
        those of its logarithm, for it goes with a power of the bound."""
        x, at = np.log(self.bounds), np.log(bound)
        tiny = 1e-300
        harm = np.exp(np.interp(at, x, np.log(np.maximum(self.harm, tiny))))
        return float(np.interp(at, x, self.bytes)), float(harm) if harm > 2 * tiny else 0.0


class Share(NamedTuple):
    """What an allocation comes to."""

    bounds: dict[str, float]
    bytes: float
    harm: float


def uniform(curves: Mapping[str, Curve], bound: float) -> Share:
    """The same relative bound for all tables."""
    return total(curves, dict.fromkeys(curves, bound))


def relative_to_uniform(curves: Mapping[str, Curve], bound: float) -> Share:
    """The fewest bytes at no more harm than the same bound for all tables does; that itself if the bounds of the curves
    have nothing better."""
    same = uniform(curves, bound)
    found = allocate(curves, max(same.harm, sum(curve.harm[0] for curve in curves.values())))
    return found if found.bytes < same.bytes and found.harm <= same.harm * (1 + 1e-9) else same


def allocate(curves: Mapping[str, Curve], budget: float) -> Share:
    """A bound for each table from its curve, with the fewest bytes at a harm of at most `budget`.

    Raises:
        ValueError: no bounds of the curves keep the budget.
    """
    low, high = 0.0, _highest_price(curves)
    best = _at_price(curves, high)
    if best.harm > budget * (1 + 1e-9):
        raise ValueError(f"the tightest bounds of the curves do a harm of {best.harm:.3g}, more than {budget:.3g}")
    free = _at_price(curves, 0.0)
    if free.harm <= budget:
        return free
    for _ in range(_HALVINGS):
        price = np.sqrt(low * high) if low else high * 1e-6
        found = _at_price(curves, price)
        if found.harm <= budget:
            high, best = price, found if found.bytes <= best.bytes else best
        else:
            low = price
        if low and high / low < 1 + 1e-6:
            break
    return best


def classify(
    curves: Mapping[str, Curve], budget: float, classes: Mapping[str, float] | None = None
) -> tuple[dict[str, str], Share]:
    """The class of each table, and what they come to: `allocate` with no other bounds than the classes'."""
    of = classes or CLASSES
    bounds = tuple(sorted(of.values()))
    few = {table: _only(curve, bounds) for table, curve in curves.items()}
    share = allocate(few, budget)
    names = {bound: name for name, bound in of.items()}
    return {table: names[bound] for table, bound in share.bounds.items()}, share


def _only(curve: Curve, bounds: Sequence[float]) -> Curve:
    both = [curve.at(bound) for bound in bounds]
    return Curve(tuple(bounds), tuple(size for size, _ in both), tuple(harm for _, harm in both))


def _highest_price(curves: Mapping[str, Curve]) -> float:
    """At which no byte is worth any harm."""
    most = sum(max(curve.bytes) for curve in curves.values()) + 1.0
    least = _NOTHING * max(max(curve.harm) for curve in curves.values())
    steps = [step for curve in curves.values() for step in np.diff(curve.harm) if step > least]
    return most / min(steps) if steps else 1.0


def _at_price(curves: Mapping[str, Curve], price: float) -> Share:
    return total(curves, {table: _cheapest(curve, price) for table, curve in curves.items()})


def _cheapest(curve: Curve, price: float) -> float:
    costs: NDArray[np.float64] = np.array(curve.bytes) + price * np.array(curve.harm)
    # Of equals the tightest.
    return curve.bounds[int(costs.argmin())]


def total(curves: Mapping[str, Curve], bounds: dict[str, float]) -> Share:
    """What these bounds, one for each table, come to."""
    both = [curve.at(bounds[table]) for table, curve in curves.items()]
    return Share(bounds, sum(size for size, _ in both), sum(harm for _, harm in both))
