"""The MLPs' gradients as each of torch's hooks sends them, on real ranks."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from app.config import load_config
from pipelines.dataset import Dataset
from pipelines.dense import compress_dense
from pipelines.errors import UserError
from pipelines.groups import CountingGroup, _register, counting_groups, local_groups
from pipelines.loader import Loader
from pipelines.metrics import KINDS, WireBytes
from pipelines.model import TABLE_MARK
from pipelines.options import ExchangeOptions
from pipelines.trainable import build_trainable
from tests.ranks import run_ranks

RANKS, BATCH, STEPS, START = 2, 64, 8, 3
POWER = ["exchange.dense=powersgd", f"exchange.dense_start={START}"]
RUNS = {
    "none": [],
    "fp16": ["exchange.dense=fp16"],
    "bf16": ["exchange.dense=bf16"],
    "thin": ["exchange.dense=thin"],
    "rank 1": POWER,
    "rank 3": [*POWER, "exchange.dense_rank=3"],
}
CPU = torch.device("cpu")


def digest(weights: list[torch.Tensor]) -> str:
    return hashlib.sha256(b"".join(w.detach().numpy().tobytes() for w in weights)).hexdigest()


def take_steps(data: str, assignments: list[str], local: bool = False) -> dict[str, Any]:
    """Losses of some steps on this rank, the bytes of each for dense gradients, and the weights that they lead to."""
    small = [f"train.batch_size={BATCH}", "model.embedding_dim=8", "model.dense_layers=[32]", "model.over_layers=[48]"]
    job = load_config(assignments=[*small, *assignments]).job(data)
    dataset = Dataset(data)
    built = build_trainable(job, dataset, CPU, local_groups() if local else None)
    loader = Loader(dataset, "train", batch_size=BATCH, rank=dist.get_rank(), world_size=dist.get_world_size())
    batches = loader.train_batches(0)
    feed = iter([next(batches) for _ in range(STEPS)])
    batches.close()
    built.groups.wire.take()
    losses, sent = [], []
    for _ in range(STEPS):
        losses.append(built.pipeline.progress(feed)[0].item())
        sent.append(built.groups.wire.take()[KINDS.index("dense")].item())
    weights = [p for name, p in built.model.named_parameters() if TABLE_MARK not in name]
    return {"losses": losses, "sent": sent, "weights": digest(weights), "shapes": [list(p.shape) for p in weights]}


def many_buckets() -> dict[str, Any]:
    """PowerSGD where each layer is a bucket, and the first steps with it have gradients of zero alone."""
    group = counting_groups(ExchangeOptions()).dense
    torch.manual_seed(0)
    layers = nn.Sequential(*[nn.Linear(32, 32) for _ in range(4)])
    model = DistributedDataParallel(layers, process_group=group, find_unused_parameters=True, bucket_cap_mb=0.003)
    compress_dense(model, ExchangeOptions(dense="powersgd", dense_rank=2, dense_start=2), group, CPU)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(dist.get_rank())
    scales, digests = [0.0] * 5 + [1.0] * 15, []
    for scale in scales:
        optimizer.zero_grad()
        (scale * model(torch.randn(16, 32)).square().mean()).backward()
        optimizer.step()
        digests.append([digest([layer.weight]) for layer in layers])
    finite = all(p.isfinite().all().item() for p in model.parameters())
    return {"finite": finite, "before": digests[4], "revived": digests[5:]}


class OldGloo(CountingGroup):
    """gloo as it was before it knew bfloat16."""

    def allreduce(self, tensors: list[torch.Tensor], opts: Any) -> dist.Work:
        if tensors[0].dtype is torch.bfloat16:
            raise RuntimeError("Invalid scalar type")
        return super().allreduce(tensors, opts)


def refusals() -> list[str]:
    """What users read when it cannot be done."""
    group, old = counting_groups(ExchangeOptions()).dense, _register(lambda: OldGloo(WireBytes()))
    cases: list[tuple[nn.Module, dict[str, Any], dist.ProcessGroup]] = [
        (nn.Linear(8, 8), {"dense": "bf16"}, old),
        (nn.Sequential(nn.Linear(0, 8), nn.Linear(8, 8)), {"dense": "powersgd"}, group),
        (nn.Linear(8, 8), {"dense": "powersgd", "dense_rank": 2}, group),
    ]
    texts = []
    for layers, options, where in cases:
        model = DistributedDataParallel(layers, process_group=where)
        with pytest.raises(UserError) as refused:
            compress_dense(model, ExchangeOptions(**options), where, CPU)
        texts.append(str(refused.value))
    return texts


def on_a_rank(data: str) -> dict[str, Any]:
    """All of the above in one process, whose start takes longer than the rest."""
    return {
        "runs": {name: take_steps(data, assignments) for name, assignments in RUNS.items()},
        "free": take_steps(data, POWER, local=True),
        "buckets": many_buckets(),
        "refusals": refusals(),
    }


@pytest.fixture(scope="module")
def ranks(small_dataset: Dataset) -> list[dict[str, Any]]:
    return run_ranks(on_a_rank, RANKS, str(small_dataset.path))


def ring(values: int, size: int) -> int:
    """Bytes that a rank sends in an all-reduce."""
    return 2 * (values * size * (RANKS - 1) // RANKS)


@pytest.mark.parametrize(
    ("name", "near"), [("fp16", 1e-4), ("bf16", 1e-3), ("thin", 1e-2), ("rank 1", 1e-2), ("rank 3", 1e-2)]
)
def test_training_goes_on_as_with_fp32(ranks: list[dict], name: str, near: float) -> None:
    for rank in ranks:
        plain, sent = rank["runs"]["none"], rank["runs"][name]
        assert sent["losses"] == pytest.approx(plain["losses"], rel=near)
        assert sent["losses"] != plain["losses"]


def test_all_ranks_have_the_same_bits(ranks: list[dict]) -> None:
    first, *others = ranks
    assert len({run["weights"] for run in first["runs"].values()}) == len(RUNS)
    for rank in others:
        assert {n: r["weights"] for n, r in rank["runs"].items()} == {n: r["weights"] for n, r in first["runs"].items()}


def test_half_precision_sends_half_the_bytes(ranks: list[dict]) -> None:
    for rank in ranks:
        shapes = rank["runs"]["none"]["shapes"]
        values = sum(torch.Size(shape).numel() for shape in shapes)
        used = ring(len(shapes), 4)  # an int32 a parameter: which were used
        for name, size in (("none", 4), ("fp16", 2), ("bf16", 2)):
            assert rank["runs"][name]["sent"] == [ring(values, size) + used] * STEPS


def test_thin_sends_a_fraction_and_no_bitmap(ranks: list[dict]) -> None:
    for rank in ranks:
        plain, thin = (rank["runs"][name]["sent"] for name in ("none", "thin"))
        assert all(3 * b < a for a, b in zip(plain[1:], thin[1:], strict=True))


@pytest.mark.parametrize("power", [1, 3])
def test_powersgd_sends_two_thin_matrices_for_each_that_is_worth_it(ranks: list[dict], power: int) -> None:
    for rank in ranks:
        shapes, sent = rank["runs"]["none"]["shapes"], rank["runs"][f"rank {power}"]["sent"]
        worth = [(n, m) for n, m in (s for s in shapes if len(s) == 2) if 2 * min(n, m, power) * (n + m) < n * m]
        assert 0 < len(worth) < len([s for s in shapes if len(s) == 2])
        as_they_are = sum(torch.Size(s).numel() for s in shapes) - sum(n * m for n, m in worth)
        p, q = power * sum(n for n, _ in worth), power * sum(m for _, m in worth)
        plain = rank["runs"]["none"]["sent"]
        assert sent[:START] == plain[:START]
        assert set(sent[START:]) == {ring(as_they_are, 4) + ring(p, 4) + ring(q, 4) + ring(len(shapes), 4)}
        assert sent[-1] < plain[-1] / 2


def test_a_free_exchange_sends_nothing(ranks: list[dict]) -> None:
    for rank in ranks:
        assert set(rank["free"]["sent"]) == {0}
        assert all(0 < loss < 2 for loss in rank["free"]["losses"])


def test_powersgd_outlives_many_buckets_and_gradients_of_zero(ranks: list[dict]) -> None:
    """Its messages keep their order, and a layer that once had no gradient moves again."""
    first, second = (rank["buckets"] for rank in ranks)
    assert first == second and first["finite"]
    previous = first["before"]
    for step in first["revived"]:
        assert all(now != before for now, before in zip(step, previous, strict=True))
        previous = step


def test_what_cannot_be_done_is_refused_at_the_start(ranks: list[dict]) -> None:
    for rank in ranks:
        old, empty, small = rank["refusals"]
        assert old == (
            "exchange.dense: torch cannot send the MLPs' gradients as bf16 by gloo on cpu: Invalid scalar type "
            "(use another, or none)"
        )
        assert "exchange.dense: PowerSGD cannot take weights without columns" in empty and "fp16" in empty
        assert "exchange.dense_rank: PowerSGD of rank 2 would make no matrix of the MLPs smaller" in small


@pytest.mark.parametrize(
    ("assignments", "expected"),
    [
        (["exchange.dense_rank=2"], "exchange.dense_rank: is for PowerSGD, but exchange.dense is none (set exchange."),
        (["exchange.dense=fp16", "exchange.dense_start=9"], "exchange.dense_start: is for PowerSGD"),
        (["exchange.dense=powersgd", "exchange.dense_start=1"], "should be greater than or equal to 2, got 1"),
        (["exchange.dense=powersgd", "exchange.dense_rank=0"], "should be greater than 0, got 0"),
        (["exchange.dense=fp8"], "'none', 'thin', 'fp16', 'bf16' or 'powersgd', got 'fp8'"),
    ],
)
def test_keys_that_do_not_fit_are_one_clear_line(assignments: list[str], expected: str) -> None:
    with pytest.raises(UserError) as error:
        load_config(assignments=assignments)
    assert expected in str(error.value) and "\n" not in str(error.value)
