"""An all-to-all that uses both directions of a link at once.

gloo's own `all_to_all_single` reaches about half the rate of a full-duplex link: both directions of a pair of ranks
share a socket, and a rank's note that it is ready to receive waits behind the bulk data that it sends. Posting every
receive before any send puts all such notes ahead of the data.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import torch
import torch.distributed as dist

_TAG = 0x7077
"""Messages of one tag between two ranks match in the order of the calls, so all calls can share it."""


class Works(dist.Work):
    """Point-to-point operations that are done when all of them are."""

    def __init__(self, works: list[dist.Work], *keep: torch.Tensor) -> None:
        super().__init__()
        self._works, self._keep = works, keep

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:  # noqa: ARG002
        """Block until all data are sent and received.

        Raises:
            RuntimeError: a peer is gone, or the group's own timeout has passed.
        """
        while self._works:
            self._works.pop(0).wait()
        self._keep = ()
        return True

    def is_completed(self) -> bool:
        return all(work.is_completed() for work in self._works)


def all_to_all_duplex(
    output: torch.Tensor,
    input: torch.Tensor,
    output_splits: Sequence[int] | None,
    input_splits: Sequence[int] | None,
    group: dist.ProcessGroup,
) -> Works:
    """`torch.distributed.all_to_all_single(async_op=True)` with every receive posted before any send.

    All ranks of the group must call it in the same order.

    Args:
        output: contiguous, any dtype, [sum(output_splits), ...].
        input: contiguous, of the same dtype, [sum(input_splits), ...]. Must not change before the wait.
        output_splits: rows that come from each rank; None or empty = the same number from all.
        input_splits: rows that go to each rank; None or empty = the same number to all.

    Raises:
        RuntimeError: the splits do not add up to the tensors.
    """
    me, ranks = group.rank(), group.size()
    incoming = split(output, output_splits, ranks)
    outgoing = split(input, input_splits, ranks)
    # Rank r begins with r+1, so that not all send to the same rank at once.
    peers = [(me + i) % ranks for i in range(1, ranks)]
    works = [group.recv([incoming[p]], p, _TAG) for p in reversed(peers) if incoming[p].numel()]
    works += [group.send([outgoing[p]], p, _TAG) for p in peers if outgoing[p].numel()]
    incoming[me].copy_(outgoing[me])
    return Works(works, output, input)


def split(tensor: torch.Tensor, splits: Sequence[int] | None, ranks: int) -> list[torch.Tensor]:
    """Views of a tensor's rows by rank; no splits = equal ones."""
    return list(tensor.split(list(splits) if splits else [tensor.size(0) // ranks] * ranks))
