"""The thin exchange in a run: the same numbers where it is lossless, fewer bytes, counted and described."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist

from app.config import load_config
from pipelines.dataset import Dataset
from pipelines.errors import UserError
from pipelines.job import Job
from pipelines.loader import Loader
from pipelines.metrics import EXCHANGE, KINDS
from pipelines.metrics.thin import SUMS, ThinMeter, merge_tables
from pipelines.options import ExchangeOptions
from pipelines.thin import exchange_config, pays, resolve, table_loads
from pipelines.trainable import build_trainable
from tests.ranks import run_ranks

pytestmark = pytest.mark.usefixtures("compiled")
BATCH, DIM, STEPS = 128, 8, 6
EXACT = ["exchange.codec=thin", "exchange.row_bound=0", "exchange.gradient_bound=0"]


def job_of(data: str, *assignments: str) -> Job:
    small = [f"train.batch_size={BATCH}", f"model.embedding_dim={DIM}", "model.dense_layers=[16]"]
    return load_config(assignments=[*small, "model.over_layers=[16]", *assignments]).job(data)


def take_steps(data: str, *assignments: str) -> dict[str, Any]:
    dataset = Dataset(data)
    built = build_trainable(job_of(data, *assignments), dataset, torch.device("cpu"))
    loader = Loader(dataset, "train", batch_size=BATCH, rank=dist.get_rank(), world_size=dist.get_world_size())
    batches = loader.train_batches(0)
    taken = [next(batches) for _ in range(STEPS)]
    batches.close()
    meter = ThinMeter(built.exchange_stats)
    built.groups.wire.take()
    feed = iter(taken)
    losses = [built.pipeline.progress(feed)[0].item() for _ in taken]
    wire = dict(zip(KINDS, built.groups.wire.take().tolist(), strict=True))
    sums = meter.take()
    return {
        "losses": losses,
        "wire": wire,
        "sums": dict(zip(SUMS, sums.tolist(), strict=True)),
        "metrics": meter.metrics(sums / STEPS),
        "tables": [row for stats in built.exchange_stats for row in stats.rows()],
        "plan": built.plan,
    }


def on_a_rank(data: str) -> dict[str, Any]:
    return {
        "plain": take_steps(data, "exchange.codec=none"),
        "exact": take_steps(data, *EXACT),
        "lossy": take_steps(data, "exchange.codec=thin", "exchange.chain=huffman"),
        "auto": take_steps(data),
        "linked": take_steps(data, "exchange.link_mbit=1"),
    }


@pytest.fixture(scope="module")
def ranks(small_dataset: Dataset) -> list[dict[str, Any]]:
    return run_ranks(on_a_rank, 3, str(small_dataset.path))


def test_lossless_has_the_losses_of_torchrec(ranks: list[dict[str, Any]]) -> None:
    for rank in ranks:
        assert rank["exact"]["losses"] == pytest.approx(rank["plain"]["losses"], rel=1e-6)
        assert rank["lossy"]["losses"] == pytest.approx(rank["plain"]["losses"], rel=0.02)


def test_it_sends_fewer_bytes_and_counts_them_all(ranks: list[dict[str, Any]]) -> None:
    for rank in ranks:
        plain, lossy = (sum(rank[arm]["wire"][kind] for kind in EXCHANGE) for arm in ("plain", "lossy"))
        assert lossy * 5 < plain
        of = rank["lossy"]
        assert of["wire"]["lengths"] == 0 and of["wire"]["dense"] == rank["plain"]["wire"]["dense"]
        headers = STEPS * 2 * 32  # two peers
        assert of["sums"]["rows"] < of["wire"]["output_dist"] <= of["sums"]["rows"] + headers
        assert of["sums"]["gradients"] < of["wire"]["gradients"] <= of["sums"]["gradients"] + headers


def test_it_is_metered_and_described(ranks: list[dict[str, Any]]) -> None:
    for rank in ranks:
        metrics = rank["lossy"]["metrics"]
        assert 0 < metrics["exchange/distinct_share"] < 1 < metrics["exchange/rows_ratio"]
        assert metrics["exchange/encode_ms"] > 0 and metrics["exchange/nonfinite"] == 0
        assert "thin exchange: errors up to 1.00% of a table's range" in rank["lossy"]["plan"]
        assert rank["plain"]["metrics"] == {}
        assert metrics["exchange/distinct_rows"] == pytest.approx(rank["lossy"]["sums"]["distinct"] / STEPS)
    merged = merge_tables([rank["lossy"]["tables"] for rank in ranks])
    assert len(merged) == len({row["table"] for row in merged})
    lookups = sum(row["lookups"] for row in merged)
    assert lookups == pytest.approx(sum(rank["lossy"]["sums"]["lookups"] for rank in ranks) / STEPS)


def test_auto_is_fp32_within_a_host_and_thin_over_a_slow_link(ranks: list[dict[str, Any]]) -> None:
    for rank in ranks:
        assert rank["auto"]["losses"] == rank["plain"]["losses"]
        assert rank["linked"]["wire"]["lengths"] == 0


def test_auto_follows_the_cost_law() -> None:
    options, values = ExchangeOptions(), 2048 * 26 * 64
    assert not pays(options, values, ranks=4, hosts=1)
    assert pays(options, values, ranks=4, hosts=4)
    assert not pays(options, values // 1000, ranks=4, hosts=4), (
        "a step of the thin exchange takes longer than so little"
    )
    assert not pays(ExchangeOptions(link_mbit=400_000), values, ranks=4, hosts=4)
    assert pays(ExchangeOptions(link_mbit=100), values, ranks=2, hosts=1)
    assert not pays(ExchangeOptions(link_mbit=100), values, ranks=1, hosts=1)


def test_policies_come_from_the_options(small_dataset: Dataset) -> None:
    data, first = str(small_dataset.path), next(iter(small_dataset.table_rows))
    own = f"exchange.tables={{{first}: {{row_bound: 0.5, bounds: absolute, chain: rans, path: pooled}}}}"
    job = job_of(data, "exchange.codec=thin", "exchange.row_bound=0.01", own)
    config = exchange_config(job.exchange, table_loads(job, small_dataset), BATCH)
    assert config.of(f"table_{first}").forward.bound == 0.5
    assert config.of(f"table_{first}").path == "pooled" and config.of(f"table_{first}").backward.codec == "rans"
    others = [policy for name, policy in config.tables.items() if name != f"table_{first}"]
    assert {policy.forward.bound for policy in others} == {(0.01,)}
    assert resolve(job, small_dataset, 2, 1).codec == "thin"
    with pytest.raises(UserError, match="no table 'nix'"):
        wrong = job_of(data, "exchange.codec=thin", "exchange.tables={nix: {path: row}}")
        exchange_config(wrong.exchange, table_loads(wrong, small_dataset), BATCH)
