"""The planner against all choices there are, and the choices that it must be able to make."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cache.constants import EVERY, Chain, Coded, Constants
from cache.cost import Pick, Setting
from cache.frequency import Frequencies
from cache.lookups import Table
from cache.options import Option, hull
from cache.plan import Problem, best_batch, exact, greedy, make_plan, menus, over_memory, samples_per_s

FAST = Constants(
    fixed_ms=1.0,
    hot_fixed_ms=0.0,
    sample_us=0.1,
    message_us=1.0,
    latency_us=1.0,
    lookup_gb_s=1000.0,
    overlap_us=0.0,
    chains={"bitpack": Chain(1e6, 1e6), "huffman": Chain(1e6, 1e6)},
    coded={
        "bitpack": {EVERY: {"rows": Coded(30.0, 16.0), "gradients": Coded(30.0, 4.0)}},
        "huffman": {EVERY: {"rows": Coded(90.0, 14.0), "gradients": Coded(90.0, 3.0)}},
    },
)
"""Rows take more bits than gradients, so hot rows save bytes: row and gradient against gradient and sum."""
TABLES = (
    Table("small", 16, Frequencies.power_law(40, 1.0)),
    Table("middle", 16, Frequencies.power_law(3000, 1.2)),
    Table("large", 8, Frequencies.power_law(200_000, 1.05)),
)


def problem(constants: Constants = FAST, memory: float | None = None, **setting: float) -> Problem:
    where = {"ranks": 4, "batch": 2000, "link_mbit": 100.0} | setting
    return Problem(
        TABLES, [0, 1, 2], Setting(**where), constants, "rowwise_adagrad", memory, chains=tuple(constants.coded)
    )  # type: ignore[arg-type]


def menu_lists() -> st.SearchStrategy[list[list[Option]]]:
    option = st.tuples(st.integers(1, 40), st.integers(0, 60))
    return st.lists(st.lists(option, min_size=0, max_size=4), min_size=1, max_size=4).map(
        lambda menus: [
            [Option(Pick(), 0.0, 60.0), *(Option(Pick(i + 1), float(m), float(ms)) for i, (m, ms) in enumerate(menu))]
            for menu in menus
        ]
    )


def brute_force(every: list[list[Option]], memory: float) -> float:
    fits = (c for c in itertools.product(*every) if sum(one.memory for one in c) <= memory)
    return min(sum(one.ms for one in c) for c in fits)


@settings(deadline=None, max_examples=60)
@given(every=menu_lists(), memory=st.integers(0, 100))
def test_greedy_and_exact_against_brute_force(every: list[list[Option]], memory: int) -> None:
    best = brute_force(every, memory)
    chosen = exact(every, memory)
    assert sum(one.ms for one in chosen) == pytest.approx(best)
    assert sum(one.memory for one in chosen) <= memory + 1e-6
    hulls = [hull(menu) for menu in every]
    taken = [menu[0] for menu in hulls]
    for table, option in greedy(hulls, memory):
        taken[table] = option
    assert sum(one.memory for one in taken) <= memory
    assert best <= sum(one.ms for one in taken) <= sum(menu[0].ms for menu in every)
    free = [menu[0] for menu in hulls]
    for table, option in greedy(hulls, None):
        free[table] = option
    assert sum(one.ms for one in free) == pytest.approx(brute_force(every, 1e9))


def test_a_hull_has_falling_gains() -> None:
    points = [(0, 10), (1, 9), (2, 3), (3, 3), (4, 2.5), (5, 0)]
    found = hull([Option(Pick(), float(m), float(ms)) for m, ms in points])
    assert [(one.memory, one.ms) for one in found] == [(0, 10), (2, 3), (5, 0)]


@pytest.mark.parametrize("memory", [2e4, 2e5, 1e6])
def test_the_gap_is_a_bound_of_the_exact_solve(memory: float) -> None:
    of = problem(memory=memory)
    plan = make_plan(of)
    every = menus(of)
    hulls = [hull(menu) for menu in every]
    taken = [menu[0] for menu in hulls]
    for table, option in greedy(hulls, memory):
        taken[table] = option
    found, best = sum(one.ms for one in taken), sum(one.ms for one in exact(every, memory))
    assert best - 1e-9 <= found <= best * (1 + plan.gap) * (1 + 1e-6)
    assert plan.gap < 0.15
    assert of.memory_of(plan.picks) == plan.memory <= memory


def test_memory_counts_the_state_of_the_optimiser() -> None:
    table = Table("a", 16, Frequencies.power_law(100, 1.0))
    assert [table.row_bytes(name) for name in ("sgd", "rowwise_adagrad", "adam")] == [64.0, 68.0, 192.0]
    tight = {name: make_plan(replace(problem(memory=1e5), optimizer=name)) for name in ("sgd", "adam")}
    assert sum(p.hot for p in tight["adam"].picks) < sum(p.hot for p in tight["sgd"].picks)


def test_hot_rows_where_they_pay_and_none_where_they_do_not() -> None:
    pays = make_plan(problem())
    assert any(pick.hot for pick in pays.picks) and pays.cost.step_ms < 0.98 * pays.without_cost.step_ms
    assert pays.cost.wire_bytes < pays.without_cost.wire_bytes
    # Gradients that take as many bits as rows: a fetch each way, or a sync each way and larger unions.
    same = {"bitpack": {EVERY: {"rows": Coded(30.0, 8.0), "gradients": Coded(30.0, 8.0)}}}
    none = make_plan(problem(replace(FAST, coded=same, chains={"bitpack": Chain(1e6, 1e6)})))
    assert not any(pick.hot for pick in none.picks) and none.cost == none.without_cost and none.memory == 0
    # No memory, or a step that is all compute.
    assert make_plan(problem(memory=0.0)).memory == 0
    assert make_plan(problem(replace(FAST, fixed_ms=10_000.0))).memory == 0


def test_never_slower_than_without_and_more_memory_never_hurts() -> None:
    for ranks, link in itertools.product((2, 16, 256), (50.0, 1000.0, 100_000.0)):
        plans = over_memory(problem(ranks=ranks, link_mbit=link), [0.0, 1e4, 1e5, 1e6, 1e8])
        times = [plan.cost.step_ms for plan in plans]
        assert all(plan.cost.step_ms <= plan.without_cost.step_ms for plan in plans)
        assert (np.diff(times) <= 0.005 * times[0]).all()


def test_long_bags_are_pooled() -> None:
    table = Table("bags", 16, Frequencies.power_law(1_000_000, 0.6), bag_length=100.0)
    short = Table("one", 16, Frequencies.power_law(1_000_000, 0.6))
    of = replace(problem(), tables=[table, short], owners=[0, 1], memory=0.0)
    assert [pick.path for pick in make_plan(of).picks] == ["pooled", "row"]


def test_the_chain_follows_the_link() -> None:
    slow = {"bitpack": Chain(2000, 3000), "huffman": Chain(200, 300)}
    of = replace(problem(replace(FAST, chains=slow), memory=0.0), tables=TABLES[1:], owners=[0, 1])
    for link, chain in ((10.0, "huffman"), (100_000.0, "bitpack")):
        picks = make_plan(replace(of, setting=replace(of.setting, link_mbit=link))).picks
        assert {pick.chain for pick in picks} == {chain}


def test_the_batch_of_most_samples() -> None:
    batch, plan = best_batch(problem(), [500, 2000, 8000])
    assert batch == 8000  # fixed costs speak for the largest
    rates = [samples_per_s(make_plan(problem(batch=b)).cost, Setting(4, b)) for b in (500, 2000, 8000)]
    assert samples_per_s(plan.cost, Setting(4, 8000)) == max(rates)
