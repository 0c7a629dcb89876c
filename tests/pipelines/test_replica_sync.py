"""The two syncs of hot rows on three real ranks: the same sums, the same bits on all ranks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch.distributed as dist

from cache.sync import Sync, TorchSync
from cache.tables import HotTable, Slots
from compression import Relative
from pipelines.replica_sync import ThinSync
from tests.ranks import run_ranks

pytestmark = pytest.mark.usefixtures("compiled")
RANKS = 3
SLOTS = Slots([HotTable("a", 500, 4, 40, ("fa",)), HotTable("b", 9, 16, 0, ("fb",)), HotTable("c", 90, 8, 30, ("fc",))])
# Which share of the slots each rank touches in a step; a rank, and all of them, may touch none.
STEPS = [(0.5, 0.2, 0.9), (0.0, 0.4, 1.0), (0.0, 0.0, 0.0), (1.0, 1.0, 1.0), (0.02, 0.0, 0.0)]


def touched_by(step: int, rank: int) -> tuple[np.ndarray, np.ndarray]:
    """Slots and their gradients."""
    draw = np.random.default_rng((step, rank))
    touched = np.flatnonzero(draw.random(SLOTS.size) < STEPS[step][rank])
    return touched, draw.normal(size=SLOTS.size_of(touched)).astype(np.float32)


def sums_of(step: int) -> tuple[list[int], np.ndarray]:
    """The union, ascending, and the sums by slot in float64."""
    total, union = np.zeros(SLOTS.values), set()
    for rank in range(RANKS):
        touched, gradients = touched_by(step, rank)
        union |= set(touched.tolist())
        for slot, start in zip(touched, SLOTS.starts(touched), strict=True):
            base, dim = SLOTS.bases[slot], SLOTS.dims[slot]
            total[base : base + dim] += gradients[start : start + dim]
    return sorted(union), total


def take_steps(sync: Sync) -> list[list[Any]]:
    found = []
    for step in range(len(STEPS)):
        touched, gradients = touched_by(step, dist.get_rank())
        sync.announce(touched)
        sync.send(gradients)
        sync.reduce()
        slots, values = sync.receive()
        by_slot = np.zeros(SLOTS.values, np.float32)
        for slot, start in zip(slots, SLOTS.starts(slots), strict=True):
            base, dim = SLOTS.bases[slot], SLOTS.dims[slot]
            by_slot[base : base + dim] = values[start : start + dim]
        found.append([slots.tolist(), by_slot.tolist()])
    return found


def on_a_rank() -> dict[str, Any]:
    group, tables = dist.group.WORLD, len(SLOTS.tables)
    assert group is not None
    exact = ThinSync(SLOTS, group, [0.0] * tables, ["lossless"] * tables, verify=True)
    lossy = ThinSync(SLOTS, group, [Relative(0.01), 0.0, 0.1], ["bitpack"] * tables, verify=True)
    found = {
        name: take_steps(sync)
        for name, sync in (("torch", TorchSync(SLOTS, group)), ("exact", exact), ("lossy", lossy))
    }
    lossy.scale_bounds(1.0, 0.0)
    return found | {"scaled": take_steps(lossy), "stats": [exact.stats.rows(), lossy.stats.rows()]}


@pytest.fixture(scope="module")
def ranks() -> list[dict[str, Any]]:
    return run_ranks(on_a_rank, RANKS)


@pytest.mark.parametrize("name", ["torch", "exact", "lossy", "scaled"])
def test_sums_are_right_and_the_same_bits_on_all_ranks(ranks: list[dict[str, Any]], name: str) -> None:
    for step in range(len(STEPS)):
        union, total = sums_of(step)
        slots, values = ranks[0][name][step]
        assert sorted(slots) == union
        # Each of the messages to the rank that sums errs by up to the bound, and so does the one of sums.
        errors = np.abs(np.array(values) - total)
        tables = np.repeat(np.arange(3), [table.hot * table.dim for table in SLOTS.tables])
        for table, bound in ((0, 0.01 * 20), (2, 0.1)) if name == "lossy" else ((0, 0.0), (2, 0.0)):
            assert errors[tables == table].max() <= RANKS * bound + 1e-5
        assert all(rank[name][step] == [slots, values] for rank in ranks)
    assert name != "lossy" or any(rank["lossy"] != rank["exact"] for rank in ranks)
    assert name != "scaled" or all(rank["scaled"] == rank["exact"] for rank in ranks)


def test_what_was_sent_is_counted(ranks: list[dict[str, Any]]) -> None:
    exact, lossy = (sum(row["replica_bytes"] for row in ranks[0]["stats"][i]) for i in range(2))
    raw = sum(row["replica_raw_bytes"] for row in ranks[0]["stats"][0])
    assert 0 < lossy < exact
    # A rank sends others their slots' gradients, and all the sums of its own.
    expected = 0.0
    for step in range(len(STEPS)):
        touched, _ = touched_by(step, 0)
        union = np.array(sums_of(step)[0], np.int64)
        expected += 4 * (SLOTS.size_of(touched[touched % 3 != 0]) + 2 * SLOTS.size_of(union[union % 3 == 0]))
    assert raw == pytest.approx(expected / len(STEPS))
