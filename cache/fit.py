"""Constants from what was measured: steps at two batch sizes, by each chain."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from cache.constants import EVERY, Chain, Coded, Constants
from cache.cost import HEADER_BYTES, ID_PAYLOAD_BYTES, Pick, Setting, step_cost
from cache.lookups import Curve, Table

LEAST_SECTION_BYTES = 20.0
"""Of a table in a message: its descriptor."""
MOST_LIST_BYTES = 40.0
POWERS = 0.2, 1.2
"""Of the values that the bytes of gradients go with."""
GROWS = 1.15
"""A table that the larger batch has so many times more rows of tells fixed bytes from bytes a value."""


@dataclass(frozen=True)
class Measured:
    """Of a run of some steps at one batch size, means over ranks and steps."""

    batch: int
    step_ms: float
    tables: Sequence[Mapping[str, Any]]
    """As `exchange_report` has them, by the tables' own names."""
    ids_bytes: float
    dense_bytes: float


def fit(
    constants: Constants,
    tables: Sequence[Table],
    owners: Sequence[int],
    setting: Setting,
    small: Mapping[str, Measured],
    large: Mapping[str, Measured],
    local_ms: tuple[float, float],
) -> Constants:
    """All of the constants that steps tell.

    Args:
        constants: link and memory, already measured; the others are replaced.
        setting: of the runs, with the batch of `large`.
        small, large: by chain, at two batch sizes. The first chain is that of which the step was timed.
        local_ms: step at the two batch sizes with TorchRec's exchange of local data.
    """
    ranks = setting.ranks
    chains = {name: _speed(large[name].tables) for name in large}
    coded: dict[str, dict[str, dict[str, Coded]]] = {}
    for name in large:
        pair_of = small[name].tables, large[name].tables
        rows = fit_rows(*pair_of, ranks)
        gradients = fit_gradients(*pair_of, ranks, rows)
        coded[name] = {table: {"rows": rows[table], "gradients": gradients[table]} for table in rows}
    found = replace(
        constants,
        ranks=ranks,
        chains={**constants.chains, **chains},
        coded={**constants.coded, **coded},
        fixed_ms=0.0,
        sample_us=0.0,
    )
    chain = next(iter(large))
    paths = {row["table"]: row["path"] for row in large[chain].tables}
    picks = [Pick(0, paths.get(table.name, "row"), chain) for table in tables]
    found = replace(
        found,
        **_ids(found, tables, picks, owners, setting, (small[chain], large[chain])),
        **_dense(setting, small[chain], large[chain]),
    )
    pair = small[chain], large[chain]
    rests = [step_cost(tables, picks, owners, replace(setting, batch=one.batch), found).step_ms for one in pair]
    batches = (pair[0].batch, pair[1].batch)
    fixed, sample = _line(batches, [one.step_ms - rest for one, rest in zip(pair, rests, strict=True)])
    local_fixed, local_sample = _line(batches, list(local_ms))
    return replace(
        found, fixed_ms=fixed, sample_us=1e3 * sample, local_fixed_ms=local_fixed, local_sample_us=1e3 * local_sample
    )


def _line(batches: tuple[int, int], ms: Sequence[float]) -> tuple[float, float]:
    """(fixed, a sample) through two points; neither below 0."""
    sample = max((ms[1] - ms[0]) / (batches[1] - batches[0]), 0.0)
    fixed = ms[1] - sample * batches[1]
    return (fixed, sample) if fixed >= 0 else (0.0, ms[1] / batches[1])


Points = dict[str, tuple[float, float, float, float]]


def _points(small: Sequence[Mapping[str, Any]], large: Sequence[Mapping[str, Any]], kind: str, ranks: int) -> Points:
    """Of each table values and bytes of a message: (values, values, bytes, bytes), of the small batch first."""
    found: Points = {}
    before = {row["table"]: row for row in small}
    # Means over ranks of what was sent: one rank has the table, and exchanges it with each of the others.
    scale = ranks / (ranks - 1)
    for row in large:
        first = before.get(row["table"])
        if first is None or not first[f"{kind}_raw_bytes"]:
            continue
        n0, n1 = (scale * one[f"{kind}_raw_bytes"] / 4 for one in (first, row))
        b0, b1 = (scale * one[f"{kind}_bytes"] for one in (first, row))
        found[row["table"]] = n0, n1, b0, b1
    return found


def fit_rows(small: Sequence[Mapping[str, Any]], large: Sequence[Mapping[str, Any]], ranks: int) -> dict[str, Coded]:
    """A line through the two batch sizes for each table, and the medians for all others.

    A table of so few rows that all are in every batch shows one point; it gets the median bits a value.
    """
    points = _points(small, large, "output_dist", ranks)
    slopes = {name: (b1 - b0) / (n1 - n0) for name, (n0, n1, b0, b1) in points.items() if n1 > GROWS * n0 and b1 > b0}
    middle = statistics.median(slopes.values()) if slopes else 0.5
    found = {}
    for name, (_, values, _, sent) in points.items():
        slope = slopes.get(name, middle)
        fixed = sent - slope * values
        if fixed < LEAST_SECTION_BYTES:
            fixed = min(LEAST_SECTION_BYTES, sent)
            slope = (sent - fixed) / values
        found[name] = Coded(fixed, 8 * slope)
    known = list(found.values()) or [Coded(150.0, 8 * middle)]
    found[EVERY] = Coded(statistics.median(of.fixed_bytes for of in known), 8 * middle)
    return found


def fit_gradients(
    small: Sequence[Mapping[str, Any]],
    large: Sequence[Mapping[str, Any]],
    ranks: int,
    rows: Mapping[str, Coded],
) -> dict[str, Coded]:
    """A power of the values through the two batch sizes, over what a section of rows takes in any case."""
    found = {}
    for name, (n0, n1, b0, b1) in _points(small, large, "gradients", ranks).items():
        fixed = min(rows[name].fixed_bytes, 0.9 * b0, 0.9 * b1)
        power = 1.0
        if n1 > GROWS * n0:
            power = float(np.clip(math.log((b1 - fixed) / (b0 - fixed)) / math.log(n1 / n0), *POWERS))
        found[name] = Coded(fixed, 8 * (b1 - fixed) / n1, power, n1)
    known = list(found.values()) or [rows[EVERY]]
    fixed, bits = (statistics.median(getattr(of, key) for of in known) for key in ("fixed_bytes", "bits_per_value"))
    return {name: found.get(name, Coded(fixed, bits)) for name in rows}


def _speed(rows: Sequence[Mapping[str, Any]]) -> Chain:
    # A rank encodes the rows that it sends and decodes those that it gets, which on the mean are as many.
    raw = sum(row["output_dist_raw_bytes"] + row["gradients_raw_bytes"] for row in rows) * 1e-6
    encode, decode = (sum(row[key] for row in rows) * 1e-3 for key in ("encode_ms", "decode_ms"))
    return Chain(raw / max(encode, 1e-9), raw / max(decode, 1e-9))


def _ids(
    constants: Constants,
    tables: Sequence[Table],
    picks: Sequence[Pick],
    owners: Sequence[int],
    setting: Setting,
    pair: tuple[Measured, Measured],
) -> dict[str, Any]:
    """What a list takes, and bytes over entropy, from two batch sizes; as they are if not only distinct ids travel."""
    if any(pick.path != "row" for pick in picks):
        return {}
    away = (setting.ranks - 1) / setting.ranks
    headers = away * len(set(owners)) * (2 * HEADER_BYTES + ID_PAYLOAD_BYTES)
    entropies, sent = [], []
    for one in pair:
        curves = [Curve(table, one.batch, setting.ranks, np.zeros(1)) for table in tables]
        entropies.append(away * sum(float(curve.cold_id_bits[0]) for curve in curves) / 8)
        sent.append(one.ids_bytes - headers)
    factor = (sent[1] - sent[0]) / max(entropies[1] - entropies[0], 1e-9)
    lists = away * len(tables)
    each = (sent[1] - factor * entropies[1]) / lists
    if factor <= 0 or not 0 <= each <= MOST_LIST_BYTES:
        each = constants.id_list_bytes
        factor = max((sent[1] - each * lists) / entropies[1], 0.5)
    return {"id_factor": factor, "id_list_bytes": each}


def _dense(setting: Setting, small: Measured, large: Measured) -> dict[str, Any]:
    """Nothing where nothing is sent by the thin exchange."""
    if setting.dense == "none" or setting.ranks == 1 or not setting.dense_values:
        return {}
    away = (setting.ranks - 1) / setting.ranks
    headers = 2 * (setting.ranks - 1) * 44
    less, more = (8 * max(one.dense_bytes - headers, 0.0) / (2 * away * setting.dense_values) for one in (small, large))
    slope = max(less - more, 0.0) / math.log2(large.batch / small.batch)  # the other way round it is noise
    return {"dense_bits": more, "dense_batch": large.batch, "dense_bits_a_doubling": slope}
