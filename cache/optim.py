"""The optimisers of hot rows: FBGEMM's fused ones, on the rows that were touched, each once a step.

Sources: `EXACT_SGD`, `EXACT_ROWWISE_ADAGRAD` and `ADAM` of FBGEMM's split table batched embeddings.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from cache import kernel
from cache.tables import Ints, Slots

Floats = NDArray[np.float32]
Name = Literal["sgd", "rowwise_adagrad", "adam"]
STATES: dict[str, dict[str, bool]] = {
    "sgd": {},
    "rowwise_adagrad": {"momentum1": True},
    "adam": {"momentum1": False, "momentum2": False},
}
"""State by FBGEMM's names, and whether it is one value a row, not one a column."""


@dataclass
class RowOptimizer:
    """State of the optimiser of all slots of a replica.

    Args:
        name: sgd, rowwise_adagrad or adam.
        eps: added to the denominator; not of sgd.
        beta1, beta2: of adam.

    Attributes:
        state: float32 [slots] or [values], by FBGEMM's names.
        steps: that were taken, which adam's correction of bias counts.
    """

    slots: Slots
    name: Name
    eps: float = 1e-8
    beta1: float = 0.9
    beta2: float = 0.999
    state: dict[str, Floats] = field(init=False)
    steps: int = 0

    def __post_init__(self) -> None:
        if self.name not in STATES:
            raise ValueError(f"no optimiser {self.name!r}: {', '.join(STATES)}")
        sizes = {True: self.slots.size, False: self.slots.values}
        self.state = {key: np.zeros(sizes[by_row], np.float32) for key, by_row in STATES[self.name].items()}

    def step(self, rows: Floats, slots: Ints, gradients: Floats, rate: float) -> None:
        """Update rows in place.

        Args:
            rows: float32 [values], of all slots.
            slots: int64 [n], those with a gradient, each once.
            gradients: float32, their gradients, one after the other.
            rate: the learning rate.
        """
        self.steps += 1
        starts, dims = self.slots.bases[slots], self.slots.dims[slots]
        lr, eps = np.float32(rate), np.float32(self.eps)
        if self.name == "sgd":
            kernel.sgd(rows, starts, dims, gradients, lr)
        elif self.name == "rowwise_adagrad":
            kernel.rowwise_adagrad(rows, self.state["momentum1"], slots, starts, dims, gradients, lr, eps)
        else:
            moments = self.state["momentum1"], self.state["momentum2"]
            betas = np.float32(self.beta1), np.float32(self.beta2)
            kernel.adam(rows, *moments, starts, dims, gradients, lr, eps, *betas, self.steps)
