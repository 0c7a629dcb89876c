"""Which rows every rank holds, and how the others travel: the choice that takes the least time within memory.

The time that tables take is nearly a sum over tables (`options`), so the choice is a multiple-choice knapsack: of each
table one option, and all within the budget. Greedy takes, of all tables, the upgrade that saves the most time a byte,
again and again; its prefixes are the plans for every smaller budget. The full model then judges some of them, with all
that is no sum (the busiest rank, overlap, messages that vanish), and no cache at all is one of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.optimize import LinearConstraint, milp

from cache.constants import CHAINS, Constants
from cache.cost import Pick, Setting, StepCost, plain_cost, step_cost
from cache.lookups import Curve, Table
from cache.options import Option, Weights, hull, options, upgrades
from cache.traffic import Traffic, traffic

MARGIN = 0.02
"""Share of a step that hot rows must save by the model, or there are none: less is not worth their memory, and within
what the model may be wrong about two choices."""
LOOKS = 24
"""Plans of the greedy's way that the full model judges."""
EXACT_S = 10.0


@dataclass(frozen=True)
class Problem:
    """What to plan for."""

    tables: Sequence[Table]
    owners: Sequence[int]
    """Rank of each table's cold rows."""
    setting: Setting
    constants: Constants
    optimizer: str
    memory: float | None = None
    """Bytes that a rank may give to hot rows, state of the optimiser included; None = any."""
    paths: Sequence[str] = ("row", "pooled")
    chains: Sequence[str] = CHAINS

    def cost(self, picks: Sequence[Pick], *, dense_sync: bool = False) -> StepCost:
        return step_cost(self.tables, picks, self.owners, self.setting, self.constants, dense_sync=dense_sync)

    def traffic_of(self, table: Table, pick: Pick) -> tuple[Curve, Traffic]:
        """Of one table, arrays of one entry."""
        curve = Curve(table, self.setting.batch, self.setting.ranks, np.array([float(pick.hot)]))
        return curve, traffic(curve, pick.path, pick.chain, self.constants)

    def memory_of(self, picks: Sequence[Pick]) -> float:
        return sum(t.row_bytes(self.optimizer) * pick.hot for t, pick in zip(self.tables, picks, strict=True))


@dataclass(frozen=True)
class Plan:
    """What is chosen, next to what is not."""

    picks: list[Pick]
    cost: StepCost
    without: list[Pick]
    """The best choice without hot rows,"""
    without_cost: StepCost
    plain_cost: StepCost
    """and TorchRec's own exchange in fp32."""
    memory: float
    """Bytes of hot rows on every rank."""
    gap: float
    """How far the greedy's sum over tables may be above the least: share of the time that tables take."""
    curve: list[tuple[float, float]]
    """(bytes of hot rows, milliseconds of a step) of the plans that the model judged, by rising memory."""


def menus(problem: Problem) -> list[list[Option]]:
    """The options of each table. What travels unseen is judged at the choice without hot rows."""
    setting, constants = problem.setting, problem.constants
    window = 1e-3 * constants.overlap_us * setting.batch
    start = [Pick(0, problem.paths[0], problem.chains[0])] * len(problem.tables)
    weights = Weights.at(problem.cost(start), window, setting.bytes_per_s(constants))
    return [
        options(table, setting, constants, weights, problem.optimizer, paths=problem.paths, chains=problem.chains)
        for table in problem.tables
    ]


def make_plan(problem: Problem) -> Plan:
    """Plan for one setting."""
    every = menus(problem)
    hulls = [hull(menu) for menu in every]
    chosen = [menu[0] for menu in hulls]
    without = [option.pick for option in chosen]
    way = greedy(hulls, problem.memory)
    judged = [(0.0, problem.cost(without), without)]
    looks = set(np.unique(np.linspace(0, len(way) - 1, LOOKS).astype(int)).tolist()) if way else set()
    for number, (table, option) in enumerate(way):
        chosen[table] = option
        if number in looks:
            picks = [one.pick for one in chosen]
            judged.append((problem.memory_of(picks), problem.cost(picks), picks))
    memory, cost, picks = min(judged, key=lambda one: (one[1].step_ms, one[0]))
    if cost.step_ms > (1 - MARGIN) * judged[0][1].step_ms:
        memory, cost, picks = judged[0]
    return Plan(
        picks=picks,
        cost=cost,
        without=without,
        without_cost=judged[0][1],
        plain_cost=plain_cost(problem.tables, problem.setting, problem.constants),
        memory=memory,
        gap=_gap(hulls, way, problem.memory),
        curve=[(size, one.step_ms) for size, one, _ in judged],
    )


def greedy(hulls: Sequence[Sequence[Option]], memory: float | None) -> list[tuple[int, Option]]:
    """Upgrades in the order in which they are taken: (table, its new option). One that does not fit ends its table."""
    left = np.inf if memory is None else memory
    left -= sum(menu[0].memory for menu in hulls)
    way, closed = [], set()
    for step in upgrades(hulls):
        if step.table in closed:
            continue
        if step.memory > left:
            closed.add(step.table)
            continue
        left -= step.memory
        way.append((step.table, step.to))
    return way


def _gap(hulls: Sequence[Sequence[Option]], way: Sequence[tuple[int, Option]], memory: float | None) -> float:
    """Against the bound that a part of an upgrade could be taken (Dantzig 1957), which no choice goes below."""
    chosen = [menu[0] for menu in hulls]
    for table, option in way:
        chosen[table] = option
    found, bound = sum(one.ms for one in chosen), sum(menu[0].ms for menu in hulls)
    left = np.inf if memory is None else memory - sum(menu[0].memory for menu in hulls)
    for step in upgrades(hulls):
        share = min(1.0, left / step.memory)
        bound -= share * step.ms
        left -= share * step.memory
        if left <= 0:
            break
    return max(found / bound - 1, 0.0) if bound > 0 else 0.0


def exact(every: Sequence[Sequence[Option]], memory: float) -> list[Option]:
    """The choice of the least sum over tables, by branch and bound (HiGHS): one option a table, all within memory.

    Raises:
        ValueError: none was found in `EXACT_S` seconds.
    """
    costs = np.array([option.ms for menu in every for option in menu])
    sizes = np.array([option.memory for menu in every for option in menu])
    ends = np.cumsum([len(menu) for menu in every])
    one_each = np.zeros((len(every), costs.size))
    for row, (start, end) in zip(one_each, zip([0, *ends[:-1]], ends, strict=True), strict=True):
        row[start:end] = 1
    limits = [LinearConstraint(one_each, 1, 1)]
    if np.isfinite(memory):
        scale = max(float(sizes.max()), 1.0)
        limits.append(LinearConstraint(sizes[None, :] / scale, -np.inf, memory / scale))
    found = milp(
        costs, constraints=limits, integrality=np.ones_like(costs), bounds=(0, 1), options={"time_limit": EXACT_S}
    )
    if found.x is None:
        raise ValueError(f"no exact plan: {found.message}")
    at = np.flatnonzero(found.x > 0.5)
    flat = [option for menu in every for option in menu]
    return [flat[i] for i in at]


def over_memory(problem: Problem, budgets: Sequence[float]) -> list[Plan]:
    """A plan for each budget, for a plot of throughput over memory."""
    return [make_plan(replace(problem, memory=budget)) for budget in budgets]


def best_batch(problem: Problem, batches: Sequence[int]) -> tuple[int, Plan]:
    """The batch size with the most samples a second, and its plan. What a batch does to accuracy is not in the model,
    and fixed costs alone always speak for larger ones: give only sizes that train well."""
    plans = {batch: make_plan(replace(problem, setting=replace(problem.setting, batch=batch))) for batch in batches}
    best = max(plans, key=lambda batch: batch / plans[batch].cost.step_ms)
    return best, plans[best]


def samples_per_s(cost: StepCost, setting: Setting) -> float:
    """Of all ranks together."""
    return 1000 * setting.ranks * setting.batch / cost.step_ms
