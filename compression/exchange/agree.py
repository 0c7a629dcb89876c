"""Whether all ranks exchange the same tables in the same way: asked once, before the first batch."""

from __future__ import annotations

import zlib
from datetime import timedelta
from typing import NamedTuple

import torch
import torch.distributed as dist

from compression.exchange.errors import ExchangeError


class Terms(NamedTuple):
    """What must be the same on all ranks, told apart by its `repr`."""

    placement: object
    settings: object
    number: object
    """Of channels made before."""


_SAY = Terms(
    placement="tables, paths or placements of tables",
    settings="settings of the exchange",
    number="numbers of modules made before this one",
)


def agree(terms: Terms, group: dist.ProcessGroup, device: torch.device, timeout_s: float) -> None:
    """Compare with all ranks of a group, which must all call this.

    Raises:
        ExchangeError: not the same on all ranks; or a rank does not come in time.
    """
    digests = [zlib.crc32(repr(term).encode()) for term in terms]
    mine = torch.tensor(digests, dtype=torch.int64, device=device)
    of_ranks = [torch.empty_like(mine) for _ in range(group.size())]
    try:
        work = dist.all_gather(of_ranks, mine, group=group, async_op=True)
        assert work is not None
        work.wait(timedelta(seconds=timeout_s))
    except RuntimeError as error:
        problem = f"a rank is not there, or did not come within {timeout_s:g} s (timeout_s): see its log"
        raise ExchangeError(f"before the first batch: {problem}") from error
    for what, values in zip(_SAY, torch.stack(of_ranks).T.tolist(), strict=True):
        wrong = [rank for rank, value in enumerate(values) if value != values[0]]
        if wrong:
            raise ExchangeError(f"ranks {wrong} have other {what} than rank 0: use the same on all ranks")
