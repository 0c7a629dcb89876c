"""Calibration on real ranks, and what the cost model makes of it for a batch that was not measured."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from app.config import load_config
from cache.constants import Constants
from cache.cost import Pick, step_cost
from pipelines.calibrate import calibrate
from pipelines.dataset import Dataset
from pipelines.errors import UserError
from pipelines.measure import Steps, Windows
from pipelines.synthetic import SynthOptions, write_synthetic
from pipelines.workload import read_workload
from tests.ranks import run_ranks

SETS = ["exchange.codec=thin", "exchange.dense=thin", "exchange.chain=huffman", "model.embedding_dim=16"]
"""As calibration sets them."""


def measured(folder: str) -> dict[str, Any]:
    """Constants, and the bytes of steps at half the batch, with those that are expected."""
    dataset, device, told = Dataset(folder), torch.device("cpu"), []
    job = load_config(assignments=[*SETS, "train.batch_size=512"]).job(folder)
    constants = calibrate(job, dataset, device, told.append)
    other = load_config(assignments=[*SETS, "train.batch_size=256"]).job(folder)
    found = Steps(other, dataset, device, 24).measure(Windows(30, 1, 24))
    workload = read_workload(other, dataset)
    cost = step_cost(workload.tables, [Pick()] * 6, workload.owners(2), workload.setting(2), constants)
    wire = found["wire_bytes"]
    return {
        "told": told,
        "constants": constants.to_dict(),
        "step_ms": [found["step_ms"], cost.step_ms],
        "ids": [wire["ids"] + wire["sizes"], cost.ids],
        "rows": [wire["output_dist"], cost.rows],
        "gradients": [wire["gradients"], cost.gradients],
        "dense": [wire["dense"], cost.dense],
        "distinct": [sum(t["distinct"] for t in found["tables"]), None],
    }


@pytest.mark.slow
@pytest.mark.usefixtures("compiled")
def test_bytes_of_a_batch_that_was_not_measured(tmp_path: Path) -> None:
    folder = str(tmp_path / "data")
    rows = [5, 400, 3000, 8000, 60, 20_000]
    write_synthetic(Path(folder), SynthOptions(rows=60_000, tables=6, dense=4, rows_per_table=rows))
    one, two = run_ranks(measured, 2, folder)
    assert one["constants"] == two["constants"]  # all ranks agree
    assert one["told"] == ["link", "memory", "thin exchange", "local exchange"]
    constants = Constants.from_dict(one["constants"])
    for way in ("rows", "gradients"):
        bits = {chain: constants.coded[chain]["C4"][way].bits_per_value for chain in ("bitpack", "huffman")}
        assert 0 < bits["huffman"] < bits["bitpack"] < 32
    for kind in ("ids", "rows", "gradients", "dense"):
        found, expected = one[kind]
        assert expected == pytest.approx(found, rel=0.08), kind
    total = [sum(one[kind][i] for kind in ("ids", "rows", "gradients", "dense")) for i in (0, 1)]
    assert total[1] == pytest.approx(total[0], rel=0.05)
    assert one["step_ms"][1] > 0


def refused(batch: int) -> str:
    try:
        job = load_config(assignments=[f"train.batch_size={batch}"]).job("none")
        calibrate(job, None, torch.device("cpu"), lambda _: None)  # type: ignore[arg-type]
    except UserError as error:
        return str(error)
    return ""


def test_what_cannot_be_calibrated() -> None:
    assert "use 2 or more" in run_ranks(refused, 1, 512)[0]
    assert "a batch of 4 is too small" in run_ranks(refused, 2, 4)[0]
