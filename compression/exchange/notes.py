"""Notes that a rank which fails leaves in the store of the job: others see only that its connection is closed."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from threading import Thread

import torch.distributed as dist
from torch.distributed.distributed_c10d import _get_default_store

_PREFIX = "thinwire/exchange/"
_MOST = 2
"""The first failures: those that come later follow from them."""
_PATIENCE_S = 2.0
"""The store may be gone with the rank that kept it."""


def leave_note(text: str) -> None:
    """Tell the other ranks; if that is not possible, nothing."""
    _try(lambda: _leave(text))


def read_notes() -> str:
    """What other ranks said first, or nothing."""
    found: list[str] = []
    _try(lambda: _read(found))
    return "".join(found)


def _leave(text: str) -> None:
    store = _get_default_store()
    number = store.add(f"{_PREFIX}count", 1)
    store.set(f"{_PREFIX}{number}", f"{dist.get_rank()}:{text}")


def _read(found: list[str]) -> None:
    store = _get_default_store()
    number = 1
    while len(found) < _MOST and store.check([f"{_PREFIX}{number}"]):
        rank, _, text = store.get(f"{_PREFIX}{number}").decode().partition(":")
        if int(rank) != dist.get_rank():
            found.append(f"; rank {rank} said: {text}")
        number += 1


def _try(action: Callable[[], None]) -> None:
    def run() -> None:
        with contextlib.suppress(Exception):
            action()

    thread = Thread(target=run, name="thinwire-notes", daemon=True)
    thread.start()
    thread.join(_PATIENCE_S)
