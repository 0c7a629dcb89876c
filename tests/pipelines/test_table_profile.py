"""What errors in a table cost, measured on a model that was briefly trained."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.nn import functional

from app.analyze_command import paper_classes
from app.config import load_config
from compression.bounds import Curve, allocate, relative_to_uniform, uniform
from pipelines.dataset import Dataset
from pipelines.job import Job
from pipelines.profiler import Profiler
from pipelines.table_profile import TableProfile
from tests.ranks import run_ranks

pytestmark = [pytest.mark.usefixtures("compiled"), pytest.mark.xdist_group("table_profile")]
GRID = (0.01, 0.05, 0.2)


def job_of(data: str, *assignments: str) -> Job:
    small = ["train.batch_size=128", "model.embedding_dim=8", "model.dense_layers=[16]", "model.over_layers=[16]"]
    return load_config(assignments=[*small, "exchange.codec=none", *assignments]).job(data)


def silent(*_: object) -> None:
    pass


def profiled(data: str, *assignments: str, plant: str | None = None) -> dict[str, Any]:
    """plant: a table on which the model depends ten times as much, with one row far away from the others, so that these
    differ little next to the range."""
    dataset = Dataset(data)
    profiler = Profiler(job_of(data, *assignments), dataset, torch.device("cpu"), GRID)
    profiler.train(15, silent)
    if plant:
        with torch.no_grad():
            for name, value in profiler._trainable.model.state_dict().items():
                if f".table_{plant}." in name:
                    value.local_shards()[0].tensor.mul_(10)[3] += 2
    model: Any = profiler._trainable.model.module.model
    batch = next(profiler._loader("valid").eval_batches())[0]
    profiler.probe(2, silent)
    with torch.no_grad():
        lookups = [profiler._lookup(batch, t) for t in range(len(profiler.profiles))]
        modes = [c.pooling.name.lower() for c in profiler._configs]
        pooled = [one.pool(one.rows, mode) for one, mode in zip(lookups, modes, strict=True)]
        ours = profiler._logits(model.dense_arch(batch.dense_features), pooled)
        theirs = model(batch.dense_features, batch.sparse_features).squeeze(-1)
    rows, gradients = profiler.curves(2)
    return {
        "logits": float((ours - theirs).abs().max()),
        "loss": float(functional.binary_cross_entropy_with_logits(theirs, batch.labels.float())),
        "equal": {p.table: (p.equal / profiler.batches).tolist() for p in profiler.profiles},
        "rows": {t: [c.bytes, c.harm] for t, c in rows.items()},
        "gradients": {t: [c.bytes, c.harm] for t, c in gradients.items()},
        "bytes": [uniform(rows, 0.05).bytes, relative_to_uniform(rows, 0.05).bytes],
        "seen": {p.table: [list(shadow) for shadow in p.shadows] for p in profiler.profiles},
    }


def on_a_rank(data: str) -> dict[str, Any]:
    assert dist.get_world_size() == 1
    return {
        "plain": profiled(data),
        "mean": profiled(data, "model.pooling=mean", "optim.sparse=sgd"),
        "mixed": profiled(data, "model.table_dims={C3: 4}"),
        "planted": profiled(data, plant="C6"),
    }


@pytest.fixture(scope="module")
def found(small_dataset: Dataset) -> dict[str, Any]:
    (only,) = run_ranks(on_a_rank, 1, str(small_dataset.path))
    return only


def test_the_parts_of_the_model_give_what_the_model_gives(found: dict[str, Any]) -> None:
    for name in ("plain", "mean", "mixed"):
        assert found[name]["logits"] < 1e-5, name


def test_wider_bounds_send_less_and_cost_more(found: dict[str, Any]) -> None:
    for name in ("plain", "mean", "mixed"):
        for direction in ("rows", "gradients"):
            for table, (size, harm) in found[name][direction].items():
                assert size[0] >= size[-1] > 0 and 0 <= harm[0] <= harm[-1], (name, direction, table)
            assert sum(size[0] for size, _ in found[name][direction].values()) > sum(
                size[-1] for size, _ in found[name][direction].values()
            )
        assert found[name]["bytes"][1] <= found[name]["bytes"][0]


def test_curvature_agrees_with_the_loss_that_was_seen(found: dict[str, Any]) -> None:
    """Within four standard errors, for each table and bound."""
    for table, shadows in found["plain"]["seen"].items():
        for rows, _, difference, squares, curvature in shadows:
            noise = np.sqrt(max(squares / rows - (difference / rows) ** 2, 0) / rows)
            assert abs(difference / rows - curvature / rows) < 4 * noise + 1e-9, table


def test_a_planted_harmful_table_is_found_and_kept_tight(found: dict[str, Any]) -> None:
    """Its signal is small next to its range, but decides much."""
    planted, plain = (
        {table: Curve(GRID, tuple(size), tuple(harm)) for table, (size, harm) in found[name]["rows"].items()}
        for name in ("planted", "plain")
    )
    budget = uniform(plain, GRID[-1]).harm
    assert allocate(plain, budget).bounds["C6"] == GRID[-1]
    assert allocate(planted, budget).bounds["C6"] < GRID[-1]


def test_the_papers_classes_are_thirds_by_homogenisation() -> None:
    profiles = []
    for number in range(6):
        one = TableProfile(f"C{number}", 8, GRID)
        one.equal[:] = number / 10
        profiles.append(one)
    classes = paper_classes(profiles)
    assert classes == {"C5": "tight", "C4": "tight", "C3": "base", "C2": "base", "C1": "loose", "C0": "loose"}
