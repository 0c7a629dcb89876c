"""One optimiser for the MLPs and the fused tables, and the learning-rate schedule that both follow."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.optim.keyed import CombinedOptimizer, KeyedOptimizerWrapper

from pipelines.model import TABLE_MARK
from pipelines.options import OptimOptions

_DENSE: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "adagrad": torch.optim.Adagrad,
    "sgd": torch.optim.SGD,
}


def build_optimizer(model: DistributedModelParallel, options: OptimOptions) -> CombinedOptimizer:
    """The optimiser of the MLPs, joined with the one that the table kernels apply in the backward pass."""
    extra = {} if options.dense == "sgd" else {"eps": options.eps}

    def make(parameters: list[Any]) -> torch.optim.Optimizer:
        return _DENSE[options.dense](parameters, lr=options.dense_lr, **extra)

    dense = {name: p for name, p in model.named_parameters() if TABLE_MARK not in name}
    return CombinedOptimizer([("dense", KeyedOptimizerWrapper(dense, make)), ("tables", model.fused_optimizer)])


def lr_factor(step: int, options: OptimOptions) -> float:
    """The share of the base rate that step `step` (from 0) uses: linear warm-up, then constant, then a quadratic
    fall to zero, as the MLPerf DLRM reference does."""
    if step < options.warmup_steps:
        return (step + 1) / options.warmup_steps
    if options.decay_steps and step >= options.decay_start:
        left = max(0.0, 1 - (step - options.decay_start) / options.decay_steps)
        return left * left
    return 1.0


def set_learning_rates(optimizer: CombinedOptimizer, step: int, options: OptimOptions) -> float:
    """Set both rates for `step` and return the MLPs' one. A function of the step alone, so a resumed run needs no
    scheduler state. The table kernels pick theirs up in `zero_grad`, before the backward pass of the step."""
    factor = lr_factor(step, options)
    for name, part in optimizer.optimizers:
        base = options.dense_lr if name == "dense" else options.sparse_lr
        for group in part.param_groups:
            group["lr"] = base * factor
    return options.dense_lr * factor
