"""Bounds by iteration: a multiplier that falls from a start to 1, a function of the step alone."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

Shape = Literal["constant", "step", "linear", "log"]
SHAPES = get_args(Shape)


@dataclass(frozen=True)
class Schedule:
    """What all bounds are multiplied by at a step (arXiv 2407.04272, section 4.2.2).

    >>> paper = Schedule("step", start=2.0, steps=100)
    >>> [round(paper.at(step), 3) for step in (0, 9, 10, 55, 99, 100, 5000)]
    [2.0, 2.0, 1.9, 1.5, 1.1, 1.0, 1.0]
    """

    shape: Shape = "constant"
    """constant: always 1. The others fall from `start` to 1: step in equal stairs, linear, log fast at first."""
    start: float = 2.0
    """The multiplier at step 0; below 1 it rises."""
    steps: int = 0
    """At which the multiplier is 1, and stays so."""
    stairs: int = 10
    """Of step."""

    def __post_init__(self) -> None:
        if self.shape not in SHAPES:
            raise ValueError(f"no shape {self.shape!r}: {', '.join(SHAPES)}")
        if not 0 < self.start < math.inf:
            raise ValueError(f"start is above 0, not {self.start}")
        if self.steps < 0 or self.stairs < 1:
            raise ValueError(f"steps is at least 0 and stairs at least 1, not {self.steps} and {self.stairs}")

    def at(self, step: int) -> float:
        """The multiplier of a step, counted from 0."""
        if self.shape == "constant" or step >= self.steps:
            return 1.0
        if self.shape == "linear":
            done = step / self.steps
        elif self.shape == "step":
            done = step * self.stairs // self.steps / self.stairs
        else:
            done = math.log1p(step) / math.log1p(self.steps)
        return self.start + (1.0 - self.start) * done
