"""Bounds by what they cost: widened while a shadow evaluation sees no loss in it, narrowed when it does.

A shadow evaluation takes one batch through the model twice with the same weights, with the bounds of the moment and
with none, and compares the losses row by row. Two estimates of the harm come out of it:

- the mean difference of the losses, of which only what is beyond its noise counts: mean - z * standard error. It needs
  no assumption, but a batch has much noise.
- the second-order term, mean of p (1 - p) (dz)^2 / 2 with the probability p of a row and the difference dz of its
  logits: what errors of mean zero cost by Taylor's theorem. It has next to no noise.

Both as shares of the loss. All ranks decide from the same sums, so they decide alike.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray


class Shadow(NamedTuple):
    """Sums over the rows of a batch, of one rank or of several."""

    rows: float
    loss: float
    """Of the exact forward passes."""
    difference: float
    """Of the losses, with bounds less exact."""
    squares: float
    """Of these differences."""
    curvature: float
    """Of p (1 - p) (dz)^2 / 2."""

    @classmethod
    def of(cls, exact: NDArray[np.floating], bounded: NDArray[np.floating], labels: NDArray[np.floating]) -> Shadow:
        """From logits [n] without and with bounds, and labels [n] of 0 and 1; in float64."""
        z, other, y = (np.asarray(each, np.float64) for each in (exact, bounded, labels))
        loss = np.logaddexp(0, z) - y * z
        difference = np.logaddexp(0, other) - y * other - loss
        p = 1 / (1 + np.exp(-np.clip(z, -700, 700)))
        curvature = p * (1 - p) * (other - z) ** 2 / 2
        return cls(z.size, *(float(each.sum()) for each in (loss, difference, difference**2, curvature)))

    def seen(self) -> tuple[float, float]:
        """The mean difference of the losses, and its standard error; of at least one row."""
        mean = self.difference / self.rows
        return mean, math.sqrt(max(self.squares / self.rows - mean**2, 0) / self.rows)

    def harm(self, z: float) -> float:
        """What is lost, as a share of the loss: the larger of both estimates. Infinite if a logit is not finite."""
        if not self.rows or not math.isfinite(sum(self)):
            return math.inf if self.rows else 0.0
        mean, noise = self.seen()
        seen = max(mean - z * noise, self.curvature / self.rows)
        return seen / (self.loss / self.rows) if self.loss > 0 else 0.0


@dataclass
class ClosedLoop:
    """The multiplier of the bounds, decided anew by each shadow evaluation.

    One evaluation that sees harm is enough to narrow, so a change for the worse is met within one interval. A
    multiplier that did harm is kept in mind, and only after `patience` quiet evaluations approached again.

    >>> loop = ClosedLoop(tolerance=1e-4)
    >>> loop.decide(0.0), loop.decide(0.0), loop.decide(1e-3), loop.decide(0.0)
    ('widen', 'widen', 'narrow', 'widen')
    """

    tolerance: float
    """Harm that is borne: above it the bounds are narrowed, below half of it they are widened."""
    widen: float = 1.25
    narrow: float = 0.5
    """Factors."""
    least: float = 0.25
    most: float = 16.0
    """The multiplier stays between them."""
    patience: int = 8
    """Evaluations without harm after which the multiplier that did harm is forgotten."""
    multiplier: float = 1.0
    harmful: float = math.inf
    """The smallest multiplier that did harm lately."""
    quiet: int = 0
    """Evaluations since."""

    def __post_init__(self) -> None:
        if not (self.tolerance > 0 and self.widen > 1 and 0 < self.narrow < 1 and 0 < self.least <= 1 <= self.most):
            raise ValueError("tolerance > 0, widen > 1, 0 < narrow < 1 and least <= 1 <= most are needed")

    def decide(self, harm: float) -> str:
        """Take the harm of an evaluation into account: `widen`, `narrow` or `hold` says what was done."""
        before = self.multiplier
        self.quiet += 1
        if self.quiet > self.patience:
            self.harmful = math.inf
        if not harm <= self.tolerance:
            self.harmful, self.quiet = min(self.harmful, before), 0
            self.multiplier = max(before * self.narrow, self.least)
            return "narrow"
        wider = min(before * self.widen, self.most)
        if harm < self.tolerance / 2 and before < wider <= self.harmful / self.widen:
            self.multiplier = wider
            return "widen"
        return "hold"

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps, fit for JSON."""
        harmful = None if math.isinf(self.harmful) else self.harmful
        return {"multiplier": self.multiplier, "harmful": harmful, "quiet": self.quiet}

    def restore(self, state: dict[str, Any]) -> None:
        self.multiplier, self.quiet = float(state["multiplier"]), int(state["quiet"])
        self.harmful = math.inf if state["harmful"] is None else float(state["harmful"])
