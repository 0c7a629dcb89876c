"""What may be chosen for each table, and about how much time each choice takes: the planner's menu."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from cache.constants import Constants
from cache.cost import UPDATE_PASSES, Pick, Setting, StepCost
from cache.lookups import Curve, Floats, Table, candidates
from cache.traffic import traffic


@dataclass(frozen=True)
class Option:
    """One choice for one table."""

    pick: Pick
    memory: float
    """Bytes of its hot rows on every rank, state of the optimiser included."""
    ms: float
    """Of a step, by the rule below: only differences between options mean something."""


@dataclass(frozen=True)
class Weights:
    """How long a step waits for a byte of the mean rank, next to its time on the link: not at all if it travels while
    something is computed, and longer if another rank has more of them."""

    rows: float
    ids: float
    backward: float

    @classmethod
    def at(cls, cost: StepCost, window_ms: float, bytes_per_s: float) -> Weights:
        """Around the cost of a choice: what of the ids, and of all that travels in the backward pass, is waited for."""
        forward = 1e3 * cost.ids / bytes_per_s
        backward = 1e3 * (cost.gradients + cost.sync + cost.dense) / bytes_per_s
        return cls(cost.busiest, _exposed(forward, window_ms), _exposed(backward, window_ms))


def _exposed(ms: float, window_ms: float) -> float:
    return max(1 - window_ms / ms, 0.0) if ms > 0 else 1.0


def options(
    table: Table,
    setting: Setting,
    constants: Constants,
    weights: Weights,
    optimizer: str,
    *,
    paths: Sequence[str],
    chains: Sequence[str],
    counts: Floats | None = None,
) -> list[Option]:
    """For each candidate number of hot rows the path and chain that take the least time, by a rule that is linear in
    what tables send, so that tables can be chosen for one by one.

    Args:
        counts: candidates; default: those of `candidates`.
    """
    hot = candidates(table) if counts is None else counts
    curve = Curve(table, setting.batch, setting.ranks, hot)
    away, link = (setting.ranks - 1) / setting.ranks, setting.bytes_per_s(constants)
    best = np.full(hot.size, np.inf)
    picks: list[Pick] = [Pick()] * hot.size
    update = UPDATE_PASSES * 4e-9 * table.dim * (curve.touched + curve.union) / constants.lookup_gb_s
    for path in paths:
        for chain in chains:
            of = traffic(curve, path, chain, constants)
            waited = away * (
                weights.rows * of.rows + weights.ids * of.ids + weights.backward * weights.rows * of.gradients
            )
            waited = waited + weights.backward * (of.sync_touched + of.sync_union + of.sync_ids)
            coding = constants.coding_s(chain, 4 * of.encoded_values)[0]
            coding = coding + constants.coding_s(chain, 4 * of.decoded_values)[1]
            ms = 1e3 * (waited / link + coding + update)
            for i in np.flatnonzero(ms < best):
                best[i], picks[i] = ms[i], Pick(int(hot[i]), path, chain)
    size = table.row_bytes(optimizer)
    return [Option(pick, size * pick.hot, float(ms)) for pick, ms in zip(picks, best, strict=True)]


def hull(of: Sequence[Option]) -> list[Option]:
    """The options that some price of memory makes best, by rising memory: their time falls ever slower."""
    found: list[Option] = []
    for option in sorted(of, key=lambda one: (one.memory, one.ms)):
        if found and option.ms >= found[-1].ms:
            continue
        while len(found) > 1 and _gain(found[-2], found[-1]) <= _gain(found[-1], option):
            found.pop()
        found.append(option)
    return found


def _gain(before: Option, after: Option) -> float:
    """Milliseconds saved a byte."""
    return (before.ms - after.ms) / (after.memory - before.memory)


@dataclass(frozen=True)
class Upgrade:
    """From one option of a table's hull to the next."""

    table: int
    to: Option
    memory: float
    ms: float
    """Both as differences; ms is what is saved."""


def upgrades(menus: Sequence[Sequence[Option]]) -> list[Upgrade]:
    """All of them, the most saved a byte first; those of a table come in order, as a hull's gains fall."""
    found = [
        Upgrade(i, after, after.memory - before.memory, before.ms - after.ms)
        for i, menu in enumerate(menus)
        for before, after in pairwise(menu)
    ]
    return sorted(found, key=lambda one: -one.ms / one.memory)
