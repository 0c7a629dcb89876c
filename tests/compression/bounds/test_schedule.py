"""A multiplier is a function of the step alone, from its start to 1."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compression.bounds import SHAPES, Schedule

schedules = st.builds(
    Schedule,
    shape=st.sampled_from(SHAPES),
    start=st.floats(0.1, 20),
    steps=st.integers(0, 10**6),
    stairs=st.integers(1, 100),
)


@given(schedules, st.lists(st.integers(0, 2 * 10**6), min_size=2, max_size=20))
def test_it_goes_from_its_start_to_one_and_never_back(schedule: Schedule, steps: list[int]) -> None:
    values = [schedule.at(step) for step in sorted(steps)]
    low, high = sorted((schedule.start, 1.0))
    assert all(low - 1e-12 <= value <= high + 1e-12 for value in values)
    falling = values if schedule.start >= 1 else values[::-1]
    assert all(a >= b - 1e-12 for a, b in itertools.pairwise(falling))
    assert schedule.at(schedule.steps) == schedule.at(10**9) == 1.0
    if schedule.steps and schedule.shape != "constant":
        assert schedule.at(0) == schedule.start


def test_stairs_are_those_of_the_paper() -> None:
    # Section 4.2.2: from twice the bound to the bound in equal steps.
    schedule = Schedule("step", start=2.0, steps=1000, stairs=10)
    values = [schedule.at(step) for step in range(1001)]
    assert sorted(set(values), reverse=True) == pytest.approx([2.0 - i / 10 for i in range(11)])
    assert all(values.count(value) == 100 for value in set(values) - {1.0})


def test_log_falls_first_and_linear_evenly() -> None:
    log, linear = Schedule("log", 3.0, 1000), Schedule("linear", 3.0, 1000)
    assert linear.at(500) == 2.0
    assert all(log.at(step) < linear.at(step) for step in range(1, 1000))


def test_what_makes_no_sense_is_refused() -> None:
    for wrong in ({"shape": "cosine"}, {"start": 0.0}, {"start": float("inf")}, {"steps": -1}, {"stairs": 0}):
        with pytest.raises(ValueError, match=r"no shape|start is|steps is"):
            Schedule(**{"shape": "linear", **wrong})  # type: ignore[arg-type]
