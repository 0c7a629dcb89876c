"""Bounds by table keep the budget, and no exchange between two tables makes them better."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from compression.bounds import Curve, allocate, classify, relative_to_uniform, uniform

GRID = tuple(float(b) for b in np.geomspace(0.001, 0.2, 12))


def curve(size: float, harm: float, power: float = 2.0) -> Curve:
    """Bytes as at high rates: a bit a value for each halving of the bound. Harm with a power of the bound."""
    return Curve(GRID, tuple(size * np.log2(1 / b) for b in GRID), tuple(harm * b**power for b in GRID))


random_curves = st.lists(
    st.builds(
        lambda sizes, harms: Curve(GRID[:4], tuple(sorted(sizes, reverse=True)), tuple(sorted(harms))),
        st.lists(st.floats(1, 1000), min_size=4, max_size=4),
        st.lists(st.floats(0, 1), min_size=4, max_size=4),
    ),
    min_size=1,
    max_size=4,
)


@given(random_curves, st.floats(0.01, 4))
def test_it_keeps_the_budget_and_is_near_the_best_of_all(curves: list[Curve], budget: float) -> None:
    tables = {str(i): one for i, one in enumerate(curves)}
    best = min(
        (
            (sum(c.bytes[i] for c, i in zip(curves, at, strict=True)))
            for at in product(range(4), repeat=len(curves))
            if sum(c.harm[i] for c, i in zip(curves, at, strict=True)) <= budget
        ),
        default=None,
    )
    if best is None:
        with pytest.raises(ValueError, match="more than"):
            allocate(tables, budget)
        return
    found = allocate(tables, budget)
    assert found.harm <= budget * (1 + 1e-9)
    # Lagrange misses at most one step of one table, as long as curves are convex; these need not be.
    assert best <= found.bytes * (1 + 1e-9)
    assert found.bytes <= sum(c.bytes[0] for c in curves) * (1 + 1e-9)


def test_every_table_pays_the_same_for_its_last_byte() -> None:
    curves = {"many, harmless": curve(1000, 1.0), "many, harmful": curve(1000, 400.0), "few": curve(10, 1.0)}
    found = allocate(curves, uniform(curves, 0.02).harm)
    bounds = found.bounds
    assert bounds["many, harmless"] > bounds["few"] > bounds["many, harmful"]
    # d bytes / d log(bound) = -size / ln 2 and d harm / d log(bound) = 2 harm, so harm goes with size.
    harms = {table: curves[table].at(bound)[1] for table, bound in bounds.items()}
    assert harms["many, harmless"] == pytest.approx(harms["many, harmful"], rel=1.5)
    assert found.bytes < 0.95 * uniform(curves, 0.02).bytes


def test_it_is_never_worse_than_the_same_bound_for_all() -> None:
    rng = np.random.default_rng(0)
    curves = {str(i): curve(*rng.lognormal(0, 2, 2)) for i in range(26)}
    for bound in GRID[1:-1]:
        same, found = uniform(curves, bound), relative_to_uniform(curves, bound)
        assert found.harm <= same.harm * (1 + 1e-9) and found.bytes <= same.bytes * (1 + 1e-9)


def test_classes_have_no_other_bounds_and_are_no_better() -> None:
    curves = {"harmless": curve(10, 1.0), "harmful": curve(10, 100.0)}
    budget = uniform(curves, 0.03).harm
    classes, found = classify(curves, budget)
    assert classes == {"harmless": "loose", "harmful": "tight"} or classes == {"harmless": "loose", "harmful": "base"}
    assert set(found.bounds.values()) <= {0.01, 0.03, 0.05} and found.harm <= budget
    assert allocate(curves, budget).bytes <= found.bytes * 1.1


def test_a_table_without_harm_takes_the_widest_bound() -> None:
    found = allocate({"idle": curve(10, 0.0), "other": curve(10, 1.0)}, 1e-4)
    assert found.bounds["idle"] == GRID[-1] and found.bounds["other"] < GRID[-1]


def test_curves_are_interpolated_over_logarithms() -> None:
    one = curve(8, 5.0)
    for bound in (0.0017, 0.03, 0.11):
        size, harm = one.at(bound)
        assert size == pytest.approx(8 * np.log2(1 / bound)) and harm == pytest.approx(5 * bound**2)
    with pytest.raises(ValueError, match="ascend"):
        Curve((0.2, 0.1), (1, 2), (0, 0))
    with pytest.raises(ValueError, match="for each bound"):
        Curve((0.1, 0.2), (1, 2), (0,))
