"""Bounds that change while a model is trained: by a schedule of the step, and by what a shadow evaluation sees."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torchrec.datasets.utils import Batch

from compression.bounds import ClosedLoop, Schedule, Shadow
from pipelines.groups import Groups
from pipelines.job import Metrics
from pipelines.options import BoundOptions

# `compression.exchange` is imported where it is used: it loads compiled code, which other runs need not wait for.


class MovingBounds:
    """The bounds of a model's thin exchange from step to step, the same on all ranks.

    Args:
        model, pipeline, groups, device: of the trainable.
        thin: whether there is a thin exchange. Without one nothing is done.
    """

    def __init__(
        self,
        options: BoundOptions,
        model: torch.nn.Module,
        pipeline: Any,
        groups: Groups,
        device: torch.device,
        thin: bool,
    ) -> None:
        self._options, self._model, self._pipeline, self._groups = options, model, pipeline, groups
        self._device = device
        self._thin = thin
        self._rows, self._gradients = (
            Schedule(options.shape, start, options.steps, options.stairs)
            for start in (options.start, options.gradient_start)
        )
        self._loop = ClosedLoop(options.loop_tolerance, most=options.loop_widest)
        self._set = 1.0, 1.0

    @property
    def loop_every(self) -> int:
        """Steps between two shadow evaluations; 0 = none."""
        return self._options.loop_every if self._thin else 0

    def before(self, step: int) -> None:
        """Set the bounds of a step, counted from 0."""
        if not self._thin:
            return
        self._scale(self._rows.at(step) * self._loop.multiplier, self._gradients.at(step))

    def metrics(self) -> Metrics:
        """The multipliers that are set; nothing where they never change."""
        if not self._thin or (self._options.shape == "constant" and not self._options.loop_every):
            return {}
        rows, gradients = self._set
        return {"bounds/row_multiplier": rows, "bounds/gradient_multiplier": gradients}

    def evaluate(self, batch: Batch) -> tuple[str, Metrics]:
        """A shadow evaluation of a batch that every rank has one of; no batch may be in the pipeline. Weights,
        optimiser and position stay as they are.

        Returns:
            What was decided, for people, and metrics; the same on all ranks.
        """
        set_before = self._set
        self._model.eval()
        try:
            with torch.no_grad():
                bounded, labels = self._logits(batch)
                self._scale(0.0, 0.0)
                exact, _ = self._logits(batch)
        finally:
            self._scale(*set_before)
            self._model.train()
        sums = torch.tensor(Shadow.of(exact.numpy(), bounded.numpy(), labels.numpy()), dtype=torch.float64)
        sums = sums.to(self._device)
        dist.all_reduce(sums, group=self._groups.exchange)
        harm = Shadow(*sums.tolist()).harm(self._options.loop_noise)
        used, done = self._loop.multiplier, self._loop.decide(harm)
        wire = float(self._groups.wire.take().sum())
        metrics = {
            "bounds/shadow_harm": harm,
            "bounds/loop_multiplier": self._loop.multiplier,
            "bounds/shadow_kb": wire / 1e3,
        }
        return (
            f"bounds of rows x{used:.3g} cost {harm:.2g} of the loss: {done} to x{self._loop.multiplier:.3g}",
            metrics,
        )

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps, fit for JSON."""
        return self._loop.state()

    def restore(self, state: dict[str, Any]) -> None:
        self._loop.restore(state)

    def _logits(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        _, logits, labels = self._pipeline.progress(iter([batch]))
        return logits.detach().float().cpu(), labels.detach().float().cpu()

    def _scale(self, rows: float, gradients: float) -> None:
        if (rows, gradients) == self._set:
            return
        from compression.exchange import scale_bounds

        scale_bounds(self._model, rows, gradients)
        self._set = rows, gradients
