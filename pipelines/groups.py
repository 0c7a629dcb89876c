"""Process groups that stand before the real one: they count what is sent, and choose how it is sent."""

# torch lists each method in several overloads, of which its C++ side calls one.
# mypy: disable-error-code="override, call-arg"
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from itertools import count
from typing import Any

import torch
import torch.distributed as dist

from compression.all_to_all import all_to_all_duplex, split
from pipelines.errors import UserError
from pipelines.metrics import WireBytes
from pipelines.options import ExchangeOptions
from pipelines.ranges import current_kind, watch_torchrec

_BACKEND = "thinwire"
_number = count()


class CountingGroup(dist.ProcessGroup):
    """Counts the bytes that this rank sends through the default group.

    Bytes of a collective of which gloo and NCCL choose the route are those of a ring, which sends the least: all-reduce
    2 (W - 1) / W of the tensor, all-gather and broadcast (W - 1) / W of what a rank ends up with.

    Args:
        wire: where to count.
        kind: what it is for, where TorchRec does not tell.
        duplex: send an all-to-all by `all_to_all_duplex`, not by the default group's own schedule.
    """

    def __init__(self, wire: WireBytes, *, kind: str = "other", duplex: bool = False) -> None:
        super().__init__(dist.get_rank(), dist.get_world_size())
        self._wire, self._kind, self._duplex = wire, kind, duplex

    @property
    def _inner(self) -> dist.ProcessGroup:
        # Not kept: gloo's threads must end with `destroy_process_group`, whoever still holds this object.
        assert dist.group.WORLD is not None
        return dist.group.WORLD

    def getBackendName(self) -> str:  # noqa: N802
        return _BACKEND

    def _get_backend_name(self) -> str:
        # A ShardedTensor without a shard on this rank asks this for its device; the C++ side asks the one above.
        return self._inner.name()

    def all_to_all_single(
        self, output: torch.Tensor, input: torch.Tensor, output_splits: list[int], input_splits: list[int], opts: Any
    ) -> dist.Work:
        own = split(input, input_splits, self.size())[self.rank()]
        self._add(_size(input) - _size(own))
        if self._duplex:
            return all_to_all_duplex(output, input, output_splits, input_splits, self._inner)
        return self._inner.all_to_all_single(output, input, output_splits, input_splits, opts)

    def send(self, tensors: list[torch.Tensor], target: int, tag: int) -> dist.Work:
        self._add(sum(map(_size, tensors)))
        return self._inner.send(tensors, target, tag)

    def recv(self, tensors: list[torch.Tensor], source: int, tag: int) -> dist.Work:
        return self._inner.recv(tensors, source, tag)

    def allreduce(self, tensors: list[torch.Tensor], opts: Any) -> dist.Work:
        self._add(2 * self._share(tensors))
        return self._inner.allreduce(tensors, opts)

    def broadcast(self, tensors: list[torch.Tensor], opts: Any) -> dist.Work:
        self._add(self._share(tensors))
        return self._inner.broadcast(tensors, opts)

    def allgather(self, outputs: list[list[torch.Tensor]], inputs: list[torch.Tensor], opts: Any) -> dist.Work:
        self._add(sum(self._share(tensors) for tensors in outputs))
        return self._inner.allgather(outputs, inputs, opts)

    def all_gather_single(self, output: torch.Tensor, input: torch.Tensor, opts: Any) -> dist.Work:
        self._add(self._share([output]))
        return self._inner.all_gather_single(output, input, opts)

    def reduce_scatter(self, outputs: list[torch.Tensor], inputs: list[list[torch.Tensor]], opts: Any) -> dist.Work:
        self._add(sum(self._share(tensors) for tensors in inputs))
        return self._inner.reduce_scatter(outputs, inputs, opts)

    def reduce_scatter_single(self, output: torch.Tensor, input: torch.Tensor, opts: Any) -> dist.Work:
        self._add(self._share([input]))
        return self._inner.reduce_scatter_single(output, input, opts)

    def barrier(self, opts: Any) -> dist.Work:
        return self._inner.barrier(opts)

    def _share(self, tensors: list[torch.Tensor]) -> int:
        return sum(map(_size, tensors)) * (self.size() - 1) // self.size()

    def _add(self, count: int) -> None:
        self._wire.add(current_kind() or self._kind, count)


def _size(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


class LocalGroup(CountingGroup):
    """Sends nothing in a step: each rank gets what it would get if all ranks sent what it sends to itself.

    With one id a bag the shapes are those of the real exchange. The ids are the rank's own W times over, so lookups and
    updates meet fewer distinct rows. The numbers mean nothing; the time is that of a step whose communication is free.
    What is broadcast while a model is built is sent and counted.
    """

    def all_to_all_single(
        self, output: torch.Tensor, input: torch.Tensor, output_splits: list[int], input_splits: list[int], opts: Any
    ) -> dist.Work:
        own = split(input, input_splits, self.size())[self.rank()]
        for part in split(output, output_splits, self.size()):
            _fill(part, own)
        return _Done([output])

    def allreduce(self, tensors: list[torch.Tensor], opts: Any) -> dist.Work:
        return _Done(tensors)

    def allgather(self, outputs: list[list[torch.Tensor]], inputs: list[torch.Tensor], opts: Any) -> dist.Work:
        for gathered, own in zip(outputs, inputs, strict=True):
            for part in gathered:
                part.copy_(own)
        return _Done(inputs)

    def all_gather_single(self, output: torch.Tensor, input: torch.Tensor, opts: Any) -> dist.Work:
        _fill(output, input)
        return _Done([output])

    def reduce_scatter(self, outputs: list[torch.Tensor], inputs: list[list[torch.Tensor]], opts: Any) -> dist.Work:
        for output, parts in zip(outputs, inputs, strict=True):
            output.copy_(parts[self.rank()])
        return _Done(outputs)

    def reduce_scatter_single(self, output: torch.Tensor, input: torch.Tensor, opts: Any) -> dist.Work:
        output.copy_(split(input, None, self.size())[self.rank()])
        return _Done([output])


class _Done(dist.Work):
    def __init__(self, tensors: list[torch.Tensor]) -> None:
        super().__init__()
        devices: list[Any] = [t.device for t in tensors[:1] if t.is_cuda]
        self._future: torch.futures.Future[list[torch.Tensor]] = torch.futures.Future(devices=devices)
        self._future.set_result(tensors)

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        return True

    def get_future(self) -> torch.futures.Future[list[torch.Tensor]]:
        return self._future


def _fill(target: torch.Tensor, source: torch.Tensor) -> None:
    """Copy the source into the target's rows as often as it fits."""
    rows = source.size(0)
    if rows == target.size(0):
        target.copy_(source)
        return
    if not rows:
        target.zero_()
        return
    for start in range(0, target.size(0), rows):
        part = target[start : start + rows]
        part.copy_(source[: part.size(0)])


@dataclass(frozen=True)
class Groups:
    """What a model sends through."""

    exchange: dist.ProcessGroup
    """For ids, pooled embeddings, their gradients, and whatever else a step sends."""
    dense: dist.ProcessGroup
    """For the gradients of the MLPs."""
    replica: dist.ProcessGroup
    """For the sync of hot rows."""
    wire: WireBytes


def counting_groups(options: ExchangeOptions) -> Groups:
    """Groups over the default one that count. All ranks must call this at once.

    Raises:
        UserError: the default group cannot do it.
    """
    wire, duplex = WireBytes(), options.schedule == "duplex"
    if duplex:
        check_duplex()
    return Groups(
        exchange=_register(lambda: CountingGroup(wire, duplex=duplex)),
        dense=_register(lambda: CountingGroup(wire, kind="dense")),
        replica=_register(lambda: CountingGroup(wire, kind="replica")),
        wire=wire,
    )


def check_duplex() -> None:
    """Raises UserError unless the default group is one that gains by `all_to_all_duplex`."""
    if dist.get_backend() != "gloo":
        raise UserError(
            f"{dist.get_backend()} orders messages by itself",
            where="exchange.schedule",
            fix="duplex is for gloo; use torchrec",
        )


def local_groups() -> Groups:
    """Groups that send nothing in a step. All ranks must call this at once."""
    wire = WireBytes()
    group = _register(lambda: LocalGroup(wire))
    return Groups(exchange=group, dense=group, replica=group, wire=wire)


def _register(make: Callable[[], dist.ProcessGroup]) -> dist.ProcessGroup:
    """Make a group known to torch, under a backend name of its own."""
    watch_torchrec()
    name = f"{_BACKEND}{next(_number)}"
    device = "cuda" if dist.get_backend() == "nccl" else "cpu"
    dist.Backend.register_backend(name, lambda *_: make(), devices=[device])
    group = dist.new_group(backend=name)
    # TorchRec makes further groups (of the ranks of a node) with the backend of this one: they must be real ones.
    world, store = dist.distributed_c10d._world, dist.distributed_c10d._world.pg_map[group][1]
    world.pg_map[group] = (dist.get_backend(), store)
    return group
