"""The loop widens while nothing is lost, narrows at once when something is, and goes on where it was."""

from __future__ import annotations

import itertools
import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from compression.bounds import ClosedLoop, Shadow


def shadow(errors: float, bias: float = 0.0, rows: int = 4096, seed: int = 0) -> Shadow:
    rng = np.random.default_rng(seed)
    z = rng.normal(-1, 1, rows)
    labels = (rng.random(rows) < 1 / (1 + np.exp(-z))).astype(float)
    return Shadow.of(z, z + errors * rng.normal(size=rows) + bias, labels)


def test_harm_is_what_errors_cost() -> None:
    # By Taylor: mean p (1 - p) / 2 * variance, which sampling confirms with a million rows.
    some = shadow(0.2, rows=1_000_000)
    assert some.curvature == pytest.approx(some.difference, rel=0.1)
    assert shadow(0.0).harm(2.0) == 0.0
    assert 3.5 < shadow(0.1).harm(2.0) / shadow(0.05).harm(2.0) < 4.5


def test_a_shift_that_curvature_hardly_sees_is_seen_beyond_the_noise() -> None:
    assert shadow(0.0, bias=0.5).harm(2.0) > 0.02
    exact = shadow(0.0, bias=1e-4)
    assert exact.harm(2.0) < 1e-6


def test_ranks_add_up() -> None:
    rng = np.random.default_rng(1)
    z, other, y = rng.normal(size=100), rng.normal(size=100), rng.integers(0, 2, 100).astype(float)
    whole, parts = Shadow.of(z, other, y), [Shadow.of(z[s], other[s], y[s]) for s in (slice(0, 30), slice(30, 100))]
    assert [a + b for a, b in zip(*parts, strict=True)] == pytest.approx(list(whole))


def test_what_is_not_finite_is_harm_and_no_rows_are_none() -> None:
    bad = Shadow.of(np.zeros(2), np.array([0.0, np.nan]), np.ones(2))
    assert bad.harm(2.0) == math.inf
    assert Shadow(0, 0, 0, 0, 0).harm(2.0) == 0.0
    loop = ClosedLoop(tolerance=1e-4)
    assert loop.decide(bad.harm(2.0)) == "narrow" and loop.multiplier == 0.5


def test_it_settles_below_what_does_harm() -> None:
    loop, threshold, seen = ClosedLoop(tolerance=1e-4), 5.0, []
    for _ in range(60):
        seen.append(loop.multiplier)
        loop.decide(1e-5 if loop.multiplier < threshold else 1e-3)
    harmed = [m >= threshold for m in seen]
    assert 1 <= sum(harmed) <= 8
    assert not any(a and b for a, b in itertools.pairwise(harmed)), "narrowed within one evaluation"
    assert np.median(seen[20:]) > threshold / 3


def test_planted_divergence_narrows_within_one_evaluation() -> None:
    loop = ClosedLoop(tolerance=1e-4)
    while loop.decide(0.0) == "widen":
        pass
    assert loop.multiplier == loop.most
    for expected in (8.0, 4.0, 2.0, 1.0, 0.5, 0.25, 0.25):
        assert loop.decide(1.0) == "narrow" and loop.multiplier == expected


@given(st.lists(st.floats(0, 1) | st.just(math.nan) | st.just(math.inf), max_size=40), st.integers(0, 40))
def test_it_goes_on_where_it_was_and_stays_within_its_limits(harms: list[float], stop: int) -> None:
    whole, parted = ClosedLoop(tolerance=0.1), ClosedLoop(tolerance=0.1)
    for i, harm in enumerate(harms):
        if i == stop:
            state = json.loads(json.dumps(parted.state()))
            parted = ClosedLoop(tolerance=0.1)
            parted.restore(state)
        assert whole.decide(harm) == parted.decide(harm)
        assert whole == parted
        assert whole.least <= whole.multiplier <= whole.most
        if not harm <= 0.1:
            assert whole.multiplier <= max(0.5 * whole.harmful, whole.least) or whole.multiplier == whole.least


def test_what_makes_no_sense_is_refused() -> None:
    for wrong in ({"tolerance": 0.0}, {"widen": 1.0}, {"narrow": 1.0}, {"least": 2.0}, {"most": 0.5}):
        with pytest.raises(ValueError, match="are needed"):
            ClosedLoop(**{"tolerance": 0.1, **wrong})
