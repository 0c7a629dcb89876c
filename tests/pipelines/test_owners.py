"""Owners of tables: as much work for each rank, and room for what it owns."""

from __future__ import annotations

import numpy as np
import pytest

from pipelines.dataset import Dataset
from pipelines.owners import Load, assign, expected_distinct, loads


@pytest.mark.parametrize("lookups", [1, 50, 5000])
def test_expected_distinct_is_the_mean_of_draws(lookups: int) -> None:
    counts = np.array([5000, 800, 100, 0, 30, 1, 1])
    random = np.random.default_rng(0)
    draws = [np.unique(random.choice(7, lookups, p=counts / counts.sum())).size for _ in range(2000)]
    assert expected_distinct(counts, lookups) == pytest.approx(np.mean(draws), abs=5 * np.std(draws) / 2000**0.5 + 1e-9)
    assert expected_distinct(np.zeros(3, np.int64), 10) == 0


def test_work_is_balanced() -> None:
    random = np.random.default_rng(1)
    tables = {f"t{i}": Load(0, 1, 10, float(work)) for i, work in enumerate(random.pareto(1.5, 60) + 0.1)}
    owners = assign(tables, 4)
    assert owners is not None and owners.keys() == tables.keys()
    work = [sum(tables[t].work for t in owners if owners[t] == rank) for rank in range(4)]
    largest = max(load.work for load in tables.values())
    assert max(work) <= max(1.05 * sum(work) / 4, largest)


def test_memory_is_kept() -> None:
    tables = {"a": Load(0, 1, 60, 9.0), "b": Load(0, 1, 60, 1.0), "c": Load(0, 1, 60, 1.0), "d": Load(0, 1, 60, 1.0)}
    owners = assign(tables, 2, memory=120)
    assert owners is not None and sorted(owners.values()) == [0, 0, 1, 1]
    assert assign(tables, 2, memory=119) is None


def test_loads_come_from_the_counts(small_dataset: Dataset) -> None:
    rows = small_dataset.table_rows
    found = loads(small_dataset, rows, dict.fromkeys(rows, 8), 64)
    assert found.keys() == rows.keys()
    for name, load in found.items():
        assert 0 < load.distinct <= min(rows[name], 64 * load.bag_length) and load.memory == 32 * rows[name]
    hot = {name: size // 2 for name, size in rows.items()}
    cold = loads(small_dataset, rows, dict.fromkeys(rows, 8), 64, hot)
    for name, load in found.items():
        assert cold[name].distinct < load.distinct and cold[name].work < load.work and cold[name].memory == load.memory
    assert all(load.work == 0 for load in loads(small_dataset, rows, dict.fromkeys(rows, 8), 64, rows).values())
