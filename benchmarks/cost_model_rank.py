"""What each rank of `benchmarks.cost_model` does: calibrate, then predict and measure each case."""

from __future__ import annotations

import gc
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from app.config import load_config
from benchmarks.cost_model import BATCH, Case, by_calibration
from benchmarks.exchange.plan import bits_per_second
from cache.constants import Constants
from cache.cost import Pick, step_cost
from compression.exchange import use_chain
from pipelines.calibrate import BATCHES, FIRST, SETTLE, calibrate
from pipelines.dataset import Dataset
from pipelines.job import Job
from pipelines.measure import Steps, Windows
from pipelines.workload import read_workload

UNSHAPED = "none"


def main() -> None:
    given, out, where, hosts, rank = sys.argv[1:]
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=where, world_size=int(hosts), rank=int(rank))
    plan = json.loads(Path(given).read_text())
    dataset = Dataset(plan["data"])
    rows = []
    for cases in by_calibration([Case(**case) for case in plan["cases"]]).values():
        set_rate(UNSHAPED)
        constants = calibrate(job_of(replace(cases[0], hot=0.0), BATCH, dataset), dataset, torch.device("cpu"), say)
        for case in cases:
            rows.append(take(case, constants, dataset))
            say(json.dumps(rows[-1]))
    if dist.get_rank() == 0:
        Path(out).write_text(json.dumps(rows))
    dist.barrier()
    dist.destroy_process_group()


def take(case: Case, constants: Constants, dataset: Dataset) -> dict[str, Any]:
    """One row of the table: measured at the same age of the model as calibrated."""
    set_rate(UNSHAPED)
    job = job_of(case, case.batch, dataset)
    steps = Steps(job, dataset, torch.device("cpu"), BATCHES)
    # The chain of the tables alone, as a plan states it: that of the MLPs' gradients follows the link.
    use_chain(steps.trainable.model, case.chain)
    for _ in range(SETTLE):
        steps.step()
    set_rate(case.rate)
    found = steps.measure(Windows(2, 5, 5))
    del steps
    gc.collect()
    workload, ranks = read_workload(job, dataset), dist.get_world_size()
    mbit = bits_per_second(case.rate) / 1e6
    hot = hot_rows(case, dataset)
    picks = [Pick(hot[table.name], "row", case.chain) for table in workload.tables]
    cost = step_cost(workload.tables, picks, workload.owners(ranks), workload.setting(ranks, mbit), constants)
    kinds = {"ids": cost.ids, "output_dist": cost.rows, "gradients": cost.gradients, "dense": cost.dense}
    if case.hot:
        kinds["replica"] = cost.sync
    wire = found["wire_bytes"]
    return {
        "hosts": ranks,
        **vars(case),
        "measured_kb": sum(wire[kind] for kind in kinds) / 1000,
        "predicted_kb": cost.wire_bytes / 1000,
        "measured_ms": found["step_ms"],
        "windows_ms": found["windows_ms"],
        "predicted_ms": cost.step_ms,
        "by_kind_kb": {kind: [wire[kind] / 1000, kinds[kind] / 1000] for kind in kinds},
        "parts_ms": {key: getattr(cost, key) for key in vars(cost) if key.endswith("_ms")},
    }


def job_of(case: Case, batch: int, dataset: Dataset) -> Job:
    sets = [f"train.batch_size={batch}", f"model.embedding_dim={case.dim}", "exchange.codec=thin"]
    sets += ["exchange.dense=thin", f"exchange.chain={FIRST}", "exchange.path=row"]
    sets += [f"exchange.row_bound={case.row_bound}", f"exchange.gradient_bound={case.row_bound / 2}"]
    if case.hot:
        sets.append(f"cache.hot_rows={json.dumps(hot_rows(case, dataset))}")
    return load_config(assignments=sets).job(str(dataset.path))


def hot_rows(case: Case, dataset: Dataset) -> dict[str, int]:
    """By table; a share of 1 is all of them."""
    return {table: int(case.hot * rows) for table, rows in dataset.table_rows.items()}


def set_rate(rate: str) -> None:
    """Of all links of the lab."""
    if dist.get_rank() == 0:
        subprocess.run([sys.executable, "-m", "benchmarks.lab", "rate", rate], check=True, stdout=subprocess.DEVNULL)
    dist.barrier()


def say(text: str) -> None:
    if dist.get_rank() == 0:
        print(text, flush=True)


if __name__ == "__main__":
    main()
