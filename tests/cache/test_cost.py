"""Bytes and time of a step: closed forms against draws and against what is known of limits."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cache.constants import EVERY, Chain, Coded, Constants
from cache.cost import Pick, Setting, plain_cost, step_cost
from cache.frequency import Frequencies
from cache.lookups import Curve, Table, candidates
from cache.traffic import traffic

EXACT = Constants(
    chains={"raw": Chain(1000, 1000), "bitpack": Chain(1000, 1000)},
    coded={"bitpack": {EVERY: {"rows": Coded(0.0, 8.0), "gradients": Coded(0.0, 4.0)}}},
    id_factor=1.0,
    spread=0.0,
    sync_factor=1.0,
)
"""A byte a value of rows, half a byte of gradients."""
LAW = Table("a", 4, Frequencies.power_law(2000, 1.1))


def drawn_batches(table: Table, batch: int, ranks: int, seed: int) -> np.ndarray:
    """bool [ranks, rows]"""
    p = np.repeat(table.of.chances, table.of.sizes)
    return np.random.default_rng(seed).multinomial(batch, p / p.sum(), size=ranks) > 0


def test_rows_of_every_kind_are_those_of_draws() -> None:
    ranks, batch, hot = 4, 300, 60
    curve = Curve(LAW, batch, ranks, np.array([float(hot)]))
    found = [drawn_batches(LAW, batch, ranks, seed) for seed in range(400)]
    cold = np.mean([one[:, hot:].sum(axis=1).mean() for one in found])
    touched = np.mean([one[:, :hot].sum(axis=1).mean() for one in found])
    union = np.mean([one[:, :hot].any(axis=0).sum() for one in found])
    assert curve.cold[0] == pytest.approx(cold, rel=0.01)
    assert curve.touched[0] == pytest.approx(touched, rel=0.01)
    assert curve.union[0] == pytest.approx(union, rel=0.01)


def test_ids_take_about_the_entropy_of_their_gaps() -> None:
    """Next to the codec itself: what it writes for drawn ids, its header left out."""
    from compression import encode_id_lists

    curve = Curve(Table("a", 4, Frequencies.power_law(50_000, 1.1)), 4096, 2, np.array([0.0, 500.0]))
    for bits, hot in zip(curve.cold_id_bits, (0, 500), strict=True):
        sizes = []
        for seed in range(3):
            ids = np.flatnonzero(drawn_batches(curve.table, 4096, 1, seed)[0])
            sizes.append(encode_id_lists([ids[ids >= hot]]).size - 20)
        assert 0.95 < np.mean(sizes) / (bits / 8) < 1.3


def test_what_is_hot_moves_from_the_exchange_to_the_sync() -> None:
    hot = candidates(LAW)
    of = traffic(Curve(LAW, 500, 4, hot), "row", "bitpack", EXACT)
    for falling in (of.ids[5:], of.rows, of.gradients):
        assert (np.diff(falling) <= 1e-9).all()
    for rising in (of.sync_touched, of.sync_union):
        assert (np.diff(rising) >= -1e-9).all() and rising[0] == 0
    assert of.rows[-1] == of.gradients[-1] == 0
    # All of the table hot: gradients of its touched rows, half a byte a value, to three of four ranks.
    curve = Curve(LAW, 500, 4, hot)
    assert of.sync_touched[-1] == pytest.approx(3 / 4 * curve.touched[-1] * 4 / 2)
    assert of.sync_union[-1] == pytest.approx(3 / 4 * curve.union[-1] * 4 / 2)


def test_a_very_hot_row_costs_as_many_bytes_replicated_as_fetched() -> None:
    """The awkward fact: row and gradient once each way, or a gradient and a sum once each way."""
    every = Table("a", 16, Frequencies.of([1000] * 10))
    same = replace(EXACT, coded={"bitpack": {EVERY: {"rows": Coded(0.0, 5.0), "gradients": Coded(0.0, 5.0)}}})
    of = traffic(Curve(every, 10_000, 4, np.array([0.0, 10.0])), "row", "bitpack", same)
    fetched, replicated = 3 / 4 * (of.rows + of.gradients)[0], (of.sync_touched + of.sync_union)[1]
    assert replicated == pytest.approx(fetched)


def test_without_the_hot_rows_a_relative_bound_is_finer() -> None:
    """The largest gradients are theirs, and set the range: what is left takes more bits a value."""
    law = replace(EXACT, spread=0.5)
    curve = Curve(LAW, 2000, 4, np.array([0.0, 20.0, 200.0]))
    of = traffic(curve, "row", "bitpack", law)
    bits = 8 * of.gradients / (curve.cold * 4)
    assert bits[0] == pytest.approx(4, rel=1e-6)  # as measured without hot rows
    assert bits[0] < bits[1] < bits[2]
    hot_bits = 8 * of.sync_touched[1:] / (3 / 4 * curve.touched[1:] * 4)
    assert (hot_bits > 4).all()


def test_touched_only_sends_less_than_dense() -> None:
    curve = Curve(LAW, 100, 4, candidates(LAW)[1:])
    some = traffic(curve, "row", "bitpack", EXACT)
    every = traffic(curve, "row", "bitpack", EXACT, dense_sync=True)
    assert (some.sync_touched <= every.sync_touched).all() and (some.sync_union <= every.sync_union).all()
    assert every.sync_union[-1] == pytest.approx(3 / 4 * 2000 * 4 / 2) and not every.sync_ids.any()


def test_torchrec_and_pooled_bytes() -> None:
    """TorchRec sends 4 bytes for each id, length and value of a pooled row and its gradient."""
    table = Table("a", 8, Frequencies.of([1] * 100), bag_length=3.0)
    setting = Setting(ranks=4, batch=64, dense_values=1000, dense="none")
    cost = plain_cost([table], setting, EXACT)
    assert cost.ids == 3 / 4 * 4 * (64 * 3 + 64)
    assert cost.rows == cost.gradients == 3 / 4 * 4 * 64 * 8
    assert cost.dense == 2 * 3 / 4 * 4 * 1000
    by_path = {
        path: step_cost([table], [Pick(0, path, "bitpack")], [0], setting, EXACT) for path in ("pooled", "torchrec")
    }
    assert by_path["torchrec"].rows == pytest.approx(cost.rows, abs=200)
    assert by_path["pooled"].rows == pytest.approx(cost.rows / 4, abs=200)  # a byte a value


def test_with_more_ranks_than_tables_an_owner_serves_all() -> None:
    """Of TorchRec's exchange too: what is compared must have the same hot spot."""
    tables = [Table(name, 8, Frequencies.of([1] * 100), bag_length=1.0) for name in "ab"]
    few, many = (plain_cost(tables, Setting(ranks=r, batch=64, link_mbit=100, dense="none"), EXACT) for r in (2, 16))
    assert few.busiest == 1 and many.busiest == 8
    assert many.forward_ms > 7 * few.forward_ms


def test_time_is_bytes_over_the_link_and_what_is_hidden() -> None:
    setting = Setting(ranks=2, batch=500, link_mbit=100, dense="none")
    quiet = replace(EXACT, latency_us=0, message_us=0, fixed_ms=1, sample_us=0, overlap_us=0)
    cost = step_cost([LAW], [Pick(0, "row", "bitpack")], [0], setting, quiet)
    link = 0.95 * 100e6 / 8
    # One rank owns the table, so that it sends all rows, and gets all ids and gradients; the mean is half of it.
    assert cost.forward_ms == pytest.approx(1000 * 2 * (cost.rows + cost.ids) / link)
    assert cost.backward_ms == pytest.approx(1000 * 2 * cost.gradients / link)
    assert cost.busiest == pytest.approx(2.0) and cost.compute_ms == 1
    hidden = step_cost([LAW], [Pick(0, "row", "bitpack")], [0], setting, replace(quiet, overlap_us=1e4))
    assert hidden.backward_ms == 0 and hidden.forward_ms == pytest.approx(1000 * 2 * cost.rows / link)
    faster = step_cost([LAW], [Pick(0, "row", "bitpack")], [0], replace(setting, link_mbit=None), quiet)
    assert faster.forward_ms < cost.forward_ms / 50


@settings(deadline=None, max_examples=30)
@given(
    ranks=st.integers(2, 9),
    owners=st.lists(st.integers(0, 8), min_size=3, max_size=3),
    hot=st.lists(st.integers(0, 50), min_size=3, max_size=3),
)
def test_sums_over_ranks_hold(ranks: int, owners: list[int], hot: list[int]) -> None:
    """The mean rank sends what all send, over the ranks; the busiest has no less, and no more than all together."""
    tables = [Table(name, 4, Frequencies.power_law(50, 1.0)) for name in "abc"]
    at = [owner % ranks for owner in owners]
    setting = Setting(ranks=ranks, batch=40, dense="none")
    picks = [Pick(n, "row", "bitpack") for n in hot]
    cost = step_cost(tables, picks, at, setting, EXACT)
    pair = sum(
        float(traffic(Curve(t, 40, ranks, np.array([float(p.hot)])), "row", "bitpack", EXACT).rows[0])
        for t, p in zip(tables, picks, strict=True)
    )
    serving = len({owner for owner, n in zip(at, hot, strict=True) if n < 50})
    assert cost.rows == pytest.approx((ranks - 1) / ranks * (pair + 44 * serving), rel=1e-6, abs=1e-6)
    assert 1 - 1e-9 <= cost.busiest <= ranks + 1e-9
    assert cost.sync == 0 if not any(hot) else cost.sync > 0


def test_one_owner_a_table() -> None:
    with pytest.raises(ValueError, match="2 owners of 1 tables"):
        step_cost([LAW], [Pick()], [0, 1], Setting(2, 8), Constants())


def test_constants_are_written_and_read() -> None:
    assert Constants.from_dict(Constants().to_dict()) == Constants()
    good = Constants().to_dict()
    for change, text in (
        ({"latency_ms": 1}, "unknown: latency_ms"),
        ({"goodput_mbit": 0}, "goodput_mbit is 0"),
        ({"sample_us": float("nan")}, "sample_us is nan"),
        ({"coded": {"huffman": {}}}, "no entry ''"),
        ({"chains": {"huffman": {"encode": 1}}}, "encode"),
        ({"chains": {"huffman": {"encode_mb_s": 1, "decode_mb_s": 1}}}, "need bitpack"),
        ({"chains": 3}, "int"),
    ):
        with pytest.raises(ValueError, match=text):
            Constants.from_dict(good | change)
