"""Constants are found again from steps that were made up with them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from cache.constants import EVERY, Chain, Coded, Constants
from cache.cost import Pick, Setting, step_cost
from cache.fit import Measured, fit
from cache.frequency import Frequencies
from cache.lookups import Curve, Table

TABLES = [Table("a", 8, Frequencies.power_law(5000, 1.1)), Table("b", 8, Frequencies.power_law(900, 0.9))]
TABLES.append(Table("tiny", 8, Frequencies.of([5, 5])))
OWNERS = [0, 1, 2]
TRUE = Constants(
    ranks=3,
    fixed_ms=20.0,
    sample_us=30.0,
    local_fixed_ms=9.0,
    local_sample_us=25.0,
    id_factor=1.2,
    dense_bits=7.0,
    dense_batch=800,
    dense_bits_a_doubling=0.4,
    chains={"huffman": Chain(300.0, 700.0), "bitpack": Chain(900.0, 1100.0)},
    coded={
        "huffman": {
            "a": {"rows": Coded(150.0, 4.0), "gradients": Coded(150.0, 3.0, 0.7, 4000.0)},
            "b": {"rows": Coded(100.0, 3.5), "gradients": Coded(100.0, 2.5)},
            "tiny": {"rows": Coded(60.0, 3.75), "gradients": Coded(60.0, 2.75)},
            EVERY: {"rows": Coded(100.0, 3.75), "gradients": Coded(100.0, 2.75)},
        }
    },
)


def measured(setting: Setting) -> Measured:
    """What a run would report if the model were true."""
    cost = step_cost(TABLES, [Pick()] * 3, OWNERS, setting, TRUE)
    away, rows = 2 / 3, []
    for table in TABLES:
        curve = Curve(table, setting.batch, 3, np.zeros(1))
        n, some = float(curve.cold[0]), curve.some_cold[0]
        row: dict[str, Any] = {"table": table.name, "path": "row"}
        for way, kind in (("rows", "output_dist"), ("gradients", "gradients")):
            row[f"{kind}_raw_bytes"] = away * 4 * n * 8
            row[f"{kind}_bytes"] = away * float(TRUE.of("huffman", table.name, way).size(n * 8, some))  # type: ignore[arg-type]
        raw = row["output_dist_raw_bytes"] + row["gradients_raw_bytes"]
        row |= {"encode_ms": raw / 300e3, "decode_ms": raw / 700e3}
        rows.append(row)
    return Measured(setting.batch, cost.step_ms, rows, cost.ids, cost.dense)


def test_dense_bits_that_rise_with_the_batch_are_noise() -> None:
    setting = Setting(ranks=3, batch=800, dense_values=4000)
    small, large = (measured(replace(setting, batch=batch)) for batch in (200, 800))
    pair = {"huffman": replace(small, dense_bytes=0.99 * large.dense_bytes)}, {"huffman": large}
    found = fit(replace(TRUE, fixed_ms=0, sample_us=0), TABLES, OWNERS, setting, *pair, (9 + 5, 9 + 20))
    assert found.dense_bits_a_doubling == 0 and found.dense_bits == pytest.approx(7)


def test_the_model_is_found_again() -> None:
    setting = Setting(ranks=3, batch=800, dense_values=4000)
    pair = [{"huffman": measured(replace(setting, batch=batch))} for batch in (200, 800)]
    found = fit(replace(TRUE, fixed_ms=0, sample_us=0), TABLES, OWNERS, setting, *pair, (9 + 5, 9 + 20))
    assert found.fixed_ms == pytest.approx(20, rel=1e-6) and found.sample_us == pytest.approx(30, rel=1e-6)
    assert found.local_fixed_ms == pytest.approx(9) and found.local_sample_us == pytest.approx(25)
    assert found.id_factor == pytest.approx(1.2, rel=0.01) and found.dense_bits == pytest.approx(7)
    assert found.dense_bits_a_doubling == pytest.approx(0.4) and found.dense_batch == 800
    assert found.chains["huffman"].encode_mb_s == pytest.approx(300)
    for name in ("a", "b"):
        for way in ("rows", "gradients"):
            of, true = found.of("huffman", name, way), TRUE.of("huffman", name, way)  # type: ignore[arg-type]
            for values in (500, 3000, 9000):
                assert of.bits(values) == pytest.approx(true.bits(values), rel=1e-6)
            assert of.fixed_bytes == pytest.approx(true.fixed_bytes, rel=1e-6)
    # Both rows of the tiny table are in every batch: one point, and the bits of the others.
    assert found.of("huffman", "tiny", "rows").bits_per_value == pytest.approx(3.75)
    assert found.of("huffman", "tiny", "rows").fixed_bytes == pytest.approx(60)
    later = step_cost(TABLES, [Pick()] * 3, OWNERS, replace(setting, batch=400), found)
    true = step_cost(TABLES, [Pick()] * 3, OWNERS, replace(setting, batch=400), TRUE)
    assert later.wire_bytes == pytest.approx(true.wire_bytes, rel=1e-3)
    assert later.step_ms == pytest.approx(true.step_ms, rel=1e-3)


def test_a_step_that_is_all_noise_has_no_negative_parts() -> None:
    setting = Setting(ranks=3, batch=800, dense_values=4000)
    pair = [
        {"huffman": replace(measured(replace(setting, batch=b)), step_ms=ms)} for b, ms in ((200, 50.0), (800, 30.0))
    ]
    found = fit(TRUE, TABLES, OWNERS, setting, *pair, (20.0, 5.0))
    assert found.sample_us == 0 and 0 < found.fixed_ms < 30 and found.local_fixed_ms == 5
    found.check()
