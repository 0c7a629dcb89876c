"""`thinwire analyze` leaves bounds that `thinwire train --config` takes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from app.config import load_config


@pytest.mark.slow
def test_bounds_are_found_and_fit_a_configuration(thinwire: Any, tmp_path: Path) -> None:
    few = ["--preset", "smoke", "--steps", "15", "--batches", "2"]
    command = thinwire("analyze", *few, "--json", "a.json")
    assert command.wait() == 0, command.output
    assert "Warning" not in command.output and "WARNING" not in command.output, command.output
    found = json.loads((tmp_path / "a.json").read_text())
    policies = {row["policy"]: row for row in found["policies"]}
    first, *_, both = policies.values()
    assert both["row_harm"] <= first["row_harm"] * 1.0001 and both["row_bytes"] <= first["row_bytes"]
    assert both["gradient_harm"] <= first["gradient_harm"] * 1.0001
    assert len(found["tables"]) == 26
    for row in found["tables"]:
        assert row["range"] > 0 and row["rms"] > 0 and 0 < row["distinct_share"] <= 1
        assert all(chain["ratio"] > 0 and chain["encode_gb_s"] > 0 for chain in row["chains"].values())
    config = load_config("smoke", tmp_path / "bounds.yaml")
    assert {t: one.row_bound for t, one in config.exchange.tables.items()} == {
        row["table"]: pytest.approx(row["row_bound"], rel=1e-3) for row in found["tables"]
    }

    again = thinwire("analyze", *few, "--policy", "paper", "--out", "paper.yaml")
    assert again.wait() == 0, again.output
    paper = load_config("smoke", tmp_path / "paper.yaml").exchange.tables
    assert {one.row_bound for one in paper.values()} == {0.01, 0.03, 0.05}


def test_there_must_be_something_to_give_away(thinwire: Any) -> None:
    command = thinwire("analyze", "--preset", "smoke", "--set", "exchange.row_bound=0", "--steps", "1")
    assert command.wait() == 2
    assert "exchange.row_bound: 0 leaves nothing to give away" in command.output
