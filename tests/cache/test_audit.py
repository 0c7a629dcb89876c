"""A replica that is not that of the others is found and named."""

from __future__ import annotations

import copy

import numpy as np
import pytest

from cache.audit import BLOCK, DivergedReplicaError, blocks, checksums, compare
from cache.replica import Replica
from cache.tables import HotSet, HotTable, Slots

SLOTS = Slots([HotTable("a", 5000, 2, 3000, ("fa",)), HotTable("b", 9, 4, 0, ("fb",)), HotTable("c", 9, 4, 9, ("fc",))])
HOT = HotSet.first_rows(SLOTS)


def replicas(count: int) -> list[Replica]:
    one = Replica(SLOTS, "rowwise_adagrad")
    one.rows[:] = np.random.default_rng(0).normal(size=one.rows.size)
    return [copy.deepcopy(one) for _ in range(count)]


def audit(of: list[Replica]) -> None:
    compare(blocks(HOT), np.stack([checksums(replica, HOT) for replica in of]))


def test_equal_replicas_pass() -> None:
    audit(replicas(3))
    assert len(blocks(HOT)) == 4


@pytest.mark.parametrize("what", ["weight", "momentum1"])
def test_one_bit_is_found_and_named(what: str) -> None:
    """PC-06."""
    of = replicas(3)
    of[1].read(0)[what].view(np.uint32)[BLOCK + 7] ^= 1
    with pytest.raises(DivergedReplicaError, match=rf"table a, slots {BLOCK} to {2 * BLOCK - 1}, .*: rank 1 differs"):
        audit(of)


def test_of_two_ranks_neither_is_blamed_alone() -> None:
    of = replicas(2)
    of[1].read(2)["weight"].view(np.uint32)[0] ^= 1 << 31
    with pytest.raises(DivergedReplicaError, match=r"table c, slots 0 to 8, .*: ranks 0 and 1 differ; 1 of 4 blocks"):
        audit(of)


def test_other_rows_in_the_slots_are_found() -> None:
    """The same bits under other ids."""
    one = replicas(1)[0]
    other = HotSet(SLOTS, (np.arange(3000)[::-1].copy(), HOT.ids[1], HOT.ids[2]))
    with pytest.raises(DivergedReplicaError, match="table a"):
        compare(blocks(HOT), np.stack([checksums(one, HOT), checksums(one, other)]))
