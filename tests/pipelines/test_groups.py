"""What a step sends, counted; and the groups that send it in another way, or not at all."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torchrec.datasets.utils import Batch

from app.config import load_config
from pipelines.dataset import Dataset
from pipelines.errors import UserError
from pipelines.groups import counting_groups, local_groups
from pipelines.loader import Loader
from pipelines.metrics import KINDS
from pipelines.options import ExchangeOptions
from pipelines.qcomms import qcomm_codecs
from pipelines.trainable import Trainable, build_trainable
from tests.ranks import run_ranks

BATCH, DIM, STEPS = 64, 8, 4


def take_steps(data: str, assignments: list[str], local: bool) -> dict[str, object]:
    """Losses of some steps on this rank, and what it sent."""
    small = [f"train.batch_size={BATCH}", f"model.embedding_dim={DIM}", "model.dense_layers=[16]"]
    job = load_config(assignments=[*small, "model.over_layers=[16]", *assignments]).job(data)
    dataset = Dataset(data)
    built = build_trainable(job, dataset, torch.device("cpu"), local_groups() if local else None)
    loader = Loader(dataset, "train", batch_size=BATCH, rank=dist.get_rank(), world_size=dist.get_world_size())
    batches = loader.train_batches(0)
    taken = [next(batches) for _ in range(STEPS)]
    batches.close()
    built.groups.wire.take()
    feed = iter(taken)
    losses = [built.pipeline.progress(feed)[0].item() for _ in taken]
    wire = dict(zip(KINDS, built.groups.wire.take().tolist(), strict=True))
    return {"losses": losses, "wire": wire, "expected": expected(built, taken)}


def expected(built: Trainable, batches: list[Batch]) -> dict[str, float]:
    """The same by hand, for one-hot tables placed table-wise."""
    ranks, me = dist.get_world_size(), dist.get_rank()
    owner = {c.feature_names[0]: 0 for c in configs(built)}
    plan = next(iter(built.model.plan.plan.values()))
    for config in configs(built):
        owner[config.feature_names[0]] = plan[config.name].ranks[0]
    mine = sum(rank == me for rank in owner.values())
    abroad = len(owner) - mine
    dense = sum(p.numel() for n, p in built.model.named_parameters() if "embedding_bags" not in n)
    parameters = len([n for n, _ in built.model.named_parameters() if "embedding_bags" not in n])
    ids = sum(b.sparse_features[f].values().nbytes for b in batches for f, rank in owner.items() if rank != me)
    lengths = sum(b.sparse_features[f].lengths().nbytes for b in batches for f, rank in owner.items() if rank != me)
    return {
        "ids": ids,
        "lengths": lengths,
        "output_dist": STEPS * mine * BATCH * (ranks - 1) * DIM * 4,
        "gradients": STEPS * abroad * BATCH * DIM * 4,
        # DDP also agrees on which parameters were used, an int32 each.
        "dense": STEPS * (2 * (dense * 4 * (ranks - 1) // ranks) + 2 * (parameters * 4 * (ranks - 1) // ranks)),
        "replica": 0,
        "other": 0,
    }


def configs(built: Trainable) -> list:
    return [c for m in built.model.modules() if hasattr(m, "_embedding_bag_configs") for c in m._embedding_bag_configs]


def collectives() -> list[float]:
    """What the collectives beside the exchange count, on three ranks."""
    groups = counting_groups(ExchangeOptions())
    group, wire, counts = groups.exchange, groups.wire, []
    four, twelve = torch.ones(4), torch.ones(12)
    for call in (
        lambda: dist.all_reduce(twelve, group=group),
        lambda: dist.broadcast(twelve, 0, group=group),
        lambda: dist.all_gather([torch.empty(4) for _ in range(3)], four, group=group),
        lambda: dist.all_gather_single(twelve, four, group=group),
        lambda: dist.reduce_scatter_single(four, twelve, group=group),
        lambda: dist.barrier(group=group),
    ):
        wire.take()
        call()
        counts.append(float(wire.take().sum()))
    return counts


def uneven() -> list[list[float]]:
    """An all-to-all of uneven, partly empty messages by both schedules, and with no splits."""
    me = dist.get_rank()
    send = [[0, 3, 1], [2, 0, 5], [4, 1, 2]]
    splits, back = send[me], [row[me] for row in send]
    rows = torch.arange(float(sum(splits) * 2)).reshape(-1, 2) + 100 * me
    got = []
    for schedule in ("torchrec", "duplex"):
        group = counting_groups(ExchangeOptions(schedule=schedule)).exchange  # type: ignore[arg-type]
        out, even = torch.empty(sum(back), 2), torch.empty(6)
        dist.all_to_all_single(out, rows, back, splits, group=group)
        dist.all_to_all_single(even, torch.arange(6.0) + 10 * me, group=group)
        got.append([*even.tolist(), *out.flatten().tolist()])
    return got


def on_a_rank(data: str) -> dict[str, object]:
    """All of the above in one process, whose start takes longer than the rest."""
    return {
        "plain": take_steps(data, [], False),
        "duplex": take_steps(data, ["exchange.schedule=duplex"], False),
        "fp16": take_steps(data, ["exchange.codec=fp16"], False),
        "free": take_steps(data, [], True),
        "collectives": collectives(),
        "uneven": uneven(),
    }


@pytest.fixture(scope="module")
def ranks(small_dataset: Dataset) -> list[dict]:
    return run_ranks(on_a_rank, 3, str(small_dataset.path))


def test_every_kind_is_counted_to_the_byte(ranks: list[dict]) -> None:
    for rank in ranks:
        wire = dict(rank["plain"]["wire"])
        sizes = wire.pop("sizes")
        assert wire == rank["plain"]["expected"]
        assert 0 < sizes <= STEPS * 2 * 8 * 4  # two peers, int64, at most four numbers each


def test_the_duplex_schedule_brings_the_same_bits_in_as_many_bytes(ranks: list[dict]) -> None:
    for rank in ranks:
        assert rank["duplex"]["losses"] == rank["plain"]["losses"]
        assert rank["duplex"]["wire"] == rank["plain"]["wire"]


def test_qcomms_send_fewer_bytes(ranks: list[dict]) -> None:
    for rank in ranks:
        plain, coded = rank["plain"], rank["fp16"]
        assert coded["wire"]["output_dist"] * 2 == plain["wire"]["output_dist"]
        assert coded["wire"]["gradients"] * 2 == plain["wire"]["gradients"]
        assert coded["wire"]["ids"] == plain["wire"]["ids"]
        assert coded["losses"] == pytest.approx(plain["losses"], rel=1e-3)
        assert coded["losses"] != plain["losses"]


def test_a_free_exchange_sends_nothing(ranks: list[dict]) -> None:
    for rank in ranks:
        assert set(rank["free"]["wire"].values()) == {0}
        assert all(0 < loss < 2 for loss in rank["free"]["losses"])


def test_what_the_other_collectives_count(ranks: list[dict]) -> None:
    for rank in ranks:
        assert rank["collectives"] == [64, 32, 32, 32, 32, 0]


def test_both_schedules_deliver_uneven_and_empty_messages(ranks: list[dict]) -> None:
    for rank in ranks:
        theirs, ours = rank["uneven"]
        assert theirs == ours
    assert ranks[1]["uneven"][1][:6] == [2, 3, 12, 13, 22, 23]


def test_codecs_that_the_cpu_lacks_are_refused() -> None:
    for codec in ("bf16", "fp8"):
        with pytest.raises(UserError, match=rf"cannot send {codec} on cpu.*fp16 or int8"):
            qcomm_codecs(codec, torch.device("cpu"))
    assert qcomm_codecs("none", torch.device("cpu")) is None
    assert qcomm_codecs("int8", torch.device("cpu"))
