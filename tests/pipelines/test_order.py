"""The global order of samples: deterministic, complete, and independent of the number of ranks."""

import numpy as np
import pytest

from pipelines.order import Group, rank_samples, windows

GROUPS = [
    Group(part, index, rows)
    for part, sizes in enumerate([(8, 8, 3), (5,), (8, 8, 8, 1)])
    for index, rows in enumerate(sizes)
]
ROWS = sum(group.rows for group in GROUPS)
STARTS = dict(zip(GROUPS, np.cumsum([0, *(group.rows for group in GROUPS)]), strict=False))


def row_ids(epoch, *, seed=1, shuffle=True, window_groups=2):
    """Rows of the split, numbered in the order of the files, in the order of the epoch."""
    ids = []
    for window in windows(GROUPS, seed=seed, epoch=epoch, shuffle=shuffle, window_groups=window_groups):
        assert window.start == sum(map(len, ids))
        numbers = np.concatenate([STARTS[group] + np.arange(group.rows) for group in window.groups])
        ids.append(numbers[window.row(np.arange(window.rows))])
    return np.concatenate(ids)


@pytest.mark.parametrize("window_groups", [1, 2, 3, 100])
def test_an_epoch_holds_every_row_once(window_groups):
    assert sorted(row_ids(0, window_groups=window_groups)) == list(range(ROWS))


def test_the_order_depends_on_seed_and_epoch_alone():
    assert np.array_equal(row_ids(3), row_ids(3))
    for other in (row_ids(4), row_ids(3, seed=2), row_ids(3, window_groups=3)):
        assert not np.array_equal(row_ids(3), other)


def test_without_shuffle_the_order_is_that_of_the_files():
    assert np.array_equal(row_ids(5, shuffle=False), np.arange(ROWS))


def test_seed_and_epoch_are_not_interchangeable():
    assert not np.array_equal(row_ids(0, seed=1), row_ids(1, seed=0))


@pytest.mark.parametrize("world_size", [1, 2, 3])
@pytest.mark.parametrize("origin", [0, 7])
def test_ranks_take_turns_of_one_batch(world_size, origin):
    batch, first, last = 3, 5, 41
    per_rank = [
        rank_samples(first, last, origin=origin, batch=batch, rank=rank, world_size=world_size)
        for rank in range(world_size)
    ]
    assert sorted(np.concatenate(per_rank)) == list(range(max(first, origin), last))
    for rank, samples in enumerate(per_rank):
        assert all((sample - origin) // batch % world_size == rank for sample in samples)
