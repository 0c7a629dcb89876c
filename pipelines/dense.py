"""What the all-reduce of the MLPs' gradients sends: fp32, or what one of torch's own hooks of DDP makes of them."""

# No `from __future__ import annotations`: DDP compares the types of a hook's signature, which must not be strings.
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook, fp16_compress_hook
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from pipelines.errors import UserError
from pipelines.model import TABLE_MARK
from pipelines.options import ExchangeOptions, link_bytes

_SMALL = 1e-12
"""Next to any gradient that still moves a weight, nothing; its square is a float32."""
_SMALLER = 1e-16
"""Added to the length of a column that is normalised, against 0 / 0."""
_SAVES = 2
"""A matrix that PowerSGD would not make so many times smaller is sent as it is."""


def compress_dense(
    model: DistributedDataParallel, options: ExchangeOptions, group: dist.ProcessGroup, device: torch.device
) -> None:
    """From now on send the model's gradients as `options.dense` says. Called on all ranks at once, before any step.

    Args:
        group: that of the model, through which the hooks send.
        device: that of the model.

    Raises:
        UserError: torch cannot do it here, or nothing would become smaller.
    """
    if options.dense == "none":
        return
    parameters = [(name, p) for name, p in model.named_parameters() if TABLE_MARK not in name and p.requires_grad]
    if options.dense == "thin":
        from compression.exchange import DenseExchange, dense_hook

        named = [p for _, p in sorted(parameters, key=lambda pair: pair[0])]
        state = DenseExchange(
            group,
            named,
            options.dense_bound,
            options.chain,
            link=link_bytes(options),
            timeout_s=options.timeout_s,
        )
        model.register_comm_hook(state, dense_hook)
        return
    if options.dense == "powersgd":
        _check_matrices([p for _, p in parameters], options.dense_rank)
    _try(options, group, device)
    model.register_comm_hook(*_hook(options, group))


def _hook(options: ExchangeOptions, group: dist.ProcessGroup) -> tuple[Any, Callable[..., Future[torch.Tensor]]]:
    """The state of a hook, and the hook."""
    if options.dense != "powersgd":
        return group, fp16_compress_hook if options.dense == "fp16" else _bf16
    state = PowerSGDState(
        group,
        matrix_approximation_rank=options.dense_rank,
        start_powerSGD_iter=options.dense_start,
        min_compression_rate=_SAVES,
        orthogonalization_epsilon=_SMALLER,
    )
    return state, _power_sgd


def _bf16(group: dist.ProcessGroup, bucket: dist.GradBucket) -> Future[torch.Tensor]:
    # By its own name DDP takes this hook for one that needs CUDA, but gloo sums bfloat16 too.
    return bf16_compress_hook(group, bucket)


def _power_sgd(state: PowerSGDState, bucket: dist.GradBucket) -> Future[torch.Tensor]:
    begun = state.iter >= state.start_powerSGD_iter
    future = powerSGD_hook(state, bucket)
    if begun:
        # The hook sends three messages, the second and third from a thread of gloo, each once the one before is there.
        # Did this thread go on, then what it sends would come before them on one rank and behind them on another, and
        # gloo pairs messages by their order.
        future.wait()
        q = state.q_memory_dict[bucket.index()]
        # Gradients that are all zero leave a Q of zeros, with which every later product would be zero too.
        q.masked_fill_(q == 0, _SMALL)
    return future


def _check_matrices(parameters: list[nn.Parameter], rank: int) -> None:
    shapes = [p.shape for p in parameters if p.dim() == 2]
    if any(0 in shape for shape in shapes):
        raise UserError(
            "PowerSGD cannot take weights without columns", where="exchange.dense", fix="no dense column? use fp16"
        )
    if not any(_SAVES * min(n, m, rank) * (n + m) < n * m for n, m in shapes):
        raise UserError(
            f"PowerSGD of rank {rank} would make no matrix of the MLPs smaller by half",
            where="exchange.dense_rank",
            fix="use a smaller rank, or fp16" if rank > 1 else "use fp16",
        )


def _try(options: ExchangeOptions, group: dist.ProcessGroup, device: torch.device) -> None:
    """Find out now what would else fail in a later step."""
    side = 2 * _SAVES * options.dense_rank + 1  # the smallest matrix that PowerSGD compresses
    example = torch.ones(1, side, device=device)
    try:
        # Not initialised: that would change the state of torch's random numbers.
        linear = nn.utils.skip_init(nn.Linear, side, side, device=device)
        model = DistributedDataParallel(linear, process_group=group)
        model.register_comm_hook(*_hook(options.model_copy(update={"dense_start": 2}), group))
        for _ in range(3):
            model(example).sum().backward()
    except (RuntimeError, TypeError, ValueError) as error:
        raise UserError(
            f"torch cannot send the MLPs' gradients as {options.dense} by {dist.get_backend()} on {device.type}: "
            f"{' '.join(str(error).split())[:160]}",
            where="exchange.dense",
            fix="use another, or none",
        ) from error
