"""Known failures of caches, on a small model of shared and unequal tables: what is right is worked out by hand, or by a
run without hot rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torchrec.datasets.utils import Batch
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.distributed.sharding_plan import construct_module_sharding_plan, table_wise
from torchrec.distributed.types import ShardingEnv, ShardingPlan
from torchrec.modules.embedding_configs import EmbeddingBagConfig
from torchrec.modules.embedding_modules import EmbeddingBagCollection

from cache.tables import HotTable
from compression.exchange import ExchangeConfig
from pipelines.errors import UserError
from pipelines.groups import Groups, counting_groups
from pipelines.hot import Hot
from pipelines.hot_batch import HotBatch
from pipelines.job import Job
from pipelines.loader import make_kjt
from pipelines.model import TABLE_MARK, HotLookup
from pipelines.options import CacheOptions, ExchangeOptions, OptimOptions
from pipelines.ranges import watch_thin_exchange
from pipelines.sharding import sharders
from tests.ranks import run_ranks

pytestmark = pytest.mark.usefixtures("compiled")
FEATURES, ROWS, DIMS = ["fa", "fb", "fc"], [10, 10, 40], [4, 4, 8]
CPU = torch.device("cpu")
C = [(np.arange(dim) - dim // 2 + 0.5) * (i + 1) / 4 for i, dim in enumerate(DIMS)]
"""The gradient of a feature's pooled rows; sums of it are exact in float32."""
# Bags by feature and sample.
Bags = list[list[list[int]]]


class Tiny(nn.Module):
    """Two features share a table, one has its own. Its output is a sum whose gradient is `c` in all rows."""

    def __init__(self, hot: bool) -> None:
        super().__init__()
        tables = [("pair", 10, 4, ["fa", "fb"]), ("other", 40, 8, ["fc"])]
        self.ebc = EmbeddingBagCollection(
            device=torch.device("meta"),
            tables=[
                EmbeddingBagConfig(name=n, num_embeddings=r, embedding_dim=d, feature_names=f) for n, r, d, f in tables
            ],
        )
        self.hot_lookup = HotLookup() if hot else None
        self.bias = nn.Parameter(torch.zeros(1))
        self.c = {f: torch.from_numpy(c).float() for f, c in zip(FEATURES, C, strict=True)}

    def forward(self, batch: Batch) -> dict[str, torch.Tensor]:
        pooled = self.ebc(batch.sparse_features)
        if self.hot_lookup is not None:
            assert isinstance(batch, HotBatch)
            pooled = self.hot_lookup(pooled, batch.hot)
        return pooled.to_dict()

    def loss(self, batch: Batch) -> torch.Tensor:
        """The mean over the samples."""
        found = self(batch)
        return sum((found[f] * self.c[f]).sum() for f in FEATURES) / batch.labels.numel() + 0 * self.bias.sum()


class Run:
    """A sharded `Tiny` whose tables are 0, or begin with what `seed` gives.

    Args:
        hot: rows of the two tables that every rank holds; None = no cache.
    """

    def __init__(
        self,
        groups: Groups,
        hot: tuple[int, int] | None,
        *,
        sparse: str,
        thin: bool,
        seed: int | None = None,
        **cache: Any,
    ) -> None:
        config = ExchangeConfig.lossless() if thin else None
        if thin:
            watch_thin_exchange()
        optim = OptimOptions(sparse=sparse, sparse_lr=1.0)  # type: ignore[arg-type]
        of = sharders(optim, ExchangeOptions(codec="none"), CPU, config)
        tiny = Tiny(hot is not None)
        world = dist.get_world_size()
        placed = {
            "pair": table_wise(rank=0, compute_kernel="fused"),
            "other": table_wise(rank=world - 1, compute_kernel="fused"),
        }
        plan = construct_module_sharding_plan(tiny.ebc, placed, local_size=world, device_type="cpu", sharder=of[0])
        env = ShardingEnv.from_process_group(groups.exchange)
        self.model = DistributedModelParallel(tiny, env=env, device=CPU, plan=ShardingPlan({"ebc": plan}), sharders=of)
        generator = torch.Generator().manual_seed(seed or 0)
        for table in self.weights().values():
            table.copy_(torch.zeros_like(table) if seed is None else torch.randn(table.shape, generator=generator))
        self.hot: Hot | None = None
        if hot is not None:
            tables = [HotTable("pair", 10, 4, hot[0], ("fa", "fb")), HotTable("other", 40, 8, hot[1], ("fc",))]
            job = Job("", optim=optim, cache=CacheOptions(**cache))
            self.hot = Hot(tables, self.model, job, groups, config)

    def weights(self) -> dict[str, torch.Tensor]:
        """Of tables that lie here."""
        found = {}
        for key, value in self.model.state_dict().items():
            if TABLE_MARK in key and (shards := value.local_shards()):
                found[key] = shards[0].tensor.detach()
        return found

    def batch(self, bags: Bags) -> Batch:
        lengths = [np.array([len(bag) for bag in feature], np.int32) for feature in bags]
        values = [np.array([id for bag in feature for id in bag], np.int64) for feature in bags]
        size = len(bags[0])
        batch = Batch(torch.zeros(size, 1), make_kjt(FEATURES, lengths, values, size), torch.zeros(size))
        return self.hot.splitter(batch) if self.hot else batch

    def step(self, bags: Bags) -> float:
        self.model.fused_optimizer.zero_grad()  # which tells the tables their learning rate
        loss = self.model.module.loss(self.batch(bags))
        loss.backward()
        return float(loss)

    def look_up(self, bags: Bags) -> dict[str, list[list[float]]]:
        self.model.eval()
        with torch.no_grad():
            found = {name: rows.tolist() for name, rows in self.model.module(self.batch(bags)).items()}
        self.model.train()
        return found

    def tables(self) -> dict[str, list[Any]]:
        """Weights and optimiser's state of this rank's tables."""
        if self.hot:
            self.hot.write_back()
        found = {key: table.tolist() for key, table in self.weights().items()}
        for key, state in self.model.fused_optimizer.state_dict()["state"].items():
            found |= {
                f"{key} {name}": v.local_shards()[0].tensor.tolist() for name, v in state.items() if v.local_shards()
            }
        return found


def lists(seed: int, samples: int, hot: float = 0.5, most: int = 3) -> Bags:
    """Bags of 0 to `most` ids, a share of them among the first 4."""
    draw = np.random.default_rng(seed)

    def bag(rows: int) -> list[int]:
        ids = draw.integers(0, rows, draw.integers(0, most + 1))
        return np.where(draw.random(ids.size) < hot, ids % 4, ids).tolist()

    return [[bag(rows) for _ in range(samples)] for rows in ROWS]


def both(groups: Groups, steps: Sequence[Bags], **options: Any) -> list[Any]:
    """Losses and tables after some steps: without a cache, and with one, by both exchanges."""
    found = []
    for hot, thin in ((None, False), ((4, 5), False), ((4, 5), True), ((10, 0), True)):
        run = Run(groups, hot, thin=thin, **options)
        found.append([[run.step(bags) for bags in steps], run.tables()])
    return found


def averaged(groups: Groups) -> Any:
    """PC-11: the same global batch of 8 on any number of ranks."""
    each = 8 // dist.get_world_size()
    first = dist.get_rank() * each
    mine = [feature[first : first + each] for feature in lists(3, 8)]
    return both(groups, [mine], sparse="sgd")


def duplicates(groups: Groups) -> Any:
    """PC-44: ids 1 (hot) and 30 (cold) 1,000 times in a batch of each rank."""
    bags: Bags = [[[1] * 250, [1] * 250], [[1] * 500, []], [[30] * 999, [30]]]
    return [both(groups, [bags, lists(1, 2)], sparse=sparse, seed=1) for sparse in ("sgd", "rowwise_adagrad")]


def kinds(groups: Groups) -> Any:
    """PC-45: batches without hits, without misses, and empty ones, on one rank or all."""
    misses, hits, empty = (
        [[[9], [7, 8]], [[8], [9]], [[20], [39, 20]]],
        [[[0], [3, 1]], [[2], []], [[4], [4]]],
        [[[], []]] * 3,
    )
    mixed = hits if dist.get_rank() else empty
    found = both(groups, [misses, hits, empty, mixed, misses], sparse="rowwise_adagrad", seed=2)
    served, looked_up = [], []
    run = Run(groups, (4, 5), thin=True, sparse="sgd", seed=2)
    plain = Run(groups, None, thin=False, sparse="sgd", seed=2)
    for bags in (misses, hits, empty, mixed):
        looked_up.append([run.look_up(bags), plain.look_up(bags)])
        run.step(bags)
        plain.step(bags)
        assert run.hot
        served.append(run.hot.served.tolist())
        run.hot.served.zero_()
    return {"trained": found, "served": served, "looked_up": looked_up}


def edited(groups: Groups) -> Any:
    """PC-47: an owner's rows are changed behind the replicas' back."""
    run = Run(groups, (4, 5), thin=True, sparse="rowwise_adagrad", seed=3)
    run.step(lists(1, 4))
    assert run.hot
    run.hot.write_back()
    for table in run.weights().values():
        table[2] = 7.5
    run.hot.refresh()
    return run.look_up([[[2]], [[2]], [[2]]])


def moved_and_back(groups: Groups) -> Any:
    """PC-49: rows of the shared table leave the replica and come back."""
    first, second = (
        lists(5, 6, hot=1.0),
        [[[4 + id % 4 for id in bag] for bag in feature] for feature in lists(6, 6, 1.0)],
    )
    steps = [first, second, second, first, first, first]
    plain = Run(groups, None, thin=False, sparse="rowwise_adagrad", seed=4)
    hot = Run(groups, (4, 5), thin=True, sparse="rowwise_adagrad", seed=4, adapt_every=1, adapt_cost=0)
    assert hot.hot
    found, ids = [], []
    for bags in steps:
        found.append([run.step(bags) for run in (plain, hot)])
        hot.hot.adapt()
        hot.hot.audit()
        ids.append(sorted(hot.hot.splitter.hot.ids[0].tolist()))
    both_features = hot.look_up([[[4]], [[4]], [[]]])
    return {"losses": found, "ids": ids, "tables": [run.tables() for run in (plain, hot)], "row": both_features}


def looked_at(groups: Groups) -> Any:
    """PC-48: ids that were never trained, looked up between steps; nothing may change by it."""
    runs = [Run(groups, (4, 5), thin=thin, sparse="rowwise_adagrad", seed=5, adapt_every=1) for thin in (False, True)]
    found = []
    for run in runs:
        assert run.hot
        run.step(lists(1, 4, hot=1.0))
        before = [run.tables(), run.hot.served.tolist(), str(run.hot._recent.state())]
        seen = run.look_up([[[9], [8]], [[7], [3]], [[38], [0]]])
        after = [run.tables(), run.hot.served.tolist(), str(run.hot._recent.state())]
        rows = run.weights()
        found.append([before == after, seen, {key: table.tolist() for key, table in rows.items()}])
    return found


def out_of_range(groups: Groups) -> Any:
    """PC-09: named before any row is read, with hot rows and, by the thin exchange, without."""
    said = []
    for hot in (None, (4, 5)):
        run = Run(groups, hot, thin=True, sparse="sgd")
        for id in (40, 41, -1, 2**40):
            try:
                run.step([[[0]], [[]], [[3, id]]])
            except (UserError, IndexError) as error:
                said.append([id, str(error)])
    return said


def on_a_rank() -> dict[str, Any]:
    groups = counting_groups(ExchangeOptions())
    cases = [averaged, duplicates, kinds, edited, moved_and_back, looked_at]
    return {case.__name__: case(groups) for case in cases}


def averaged_alone() -> dict[str, Any]:
    return {"averaged": averaged(counting_groups(ExchangeOptions()))}


def refused_alone() -> Any:
    return out_of_range(counting_groups(ExchangeOptions()))


@pytest.fixture(scope="module")
def ranks() -> list[dict[str, Any]]:
    return run_ranks(on_a_rank, 2)


def merged(of_ranks: Sequence[dict[str, Any]]) -> dict[str, np.ndarray]:
    return {key: np.array(value) for rank in of_ranks for key, value in rank.items()}


def close(a: dict[str, np.ndarray], b: dict[str, np.ndarray]) -> None:
    assert a.keys() == b.keys()
    for key, value in a.items():
        np.testing.assert_allclose(value, b[key], rtol=1e-6, atol=1e-6, err_msg=key)


def alike(of_ranks: list[list[Any]]) -> None:
    """All arms of `both` have the losses and tables of the first."""
    for arm in range(1, len(of_ranks[0])):
        for rank in of_ranks:
            assert rank[arm][0] == pytest.approx(rank[0][0], rel=1e-6, abs=1e-7)
        close(merged([rank[arm][1] for rank in of_ranks]), merged([rank[0][1] for rank in of_ranks]))


def test_gradients_are_averaged_over_any_number_of_ranks(ranks: list[dict[str, Any]]) -> None:
    """PC-11: the rule of TorchRec, that of the loss averaged over the global batch."""
    bags = lists(3, 8)
    pair, other = np.zeros((10, 4)), np.zeros((40, 8))
    for i, feature in enumerate(bags):
        for bag in feature:
            for id in bag:
                (pair if i < 2 else other)[id] -= C[i] / 8
    for of_ranks in (run_ranks(averaged_alone, 1), ranks, run_ranks(averaged_alone, 4)):
        alike([rank["averaged"] for rank in of_ranks])
        found = merged([rank["averaged"][2][1] for rank in of_ranks])
        for name, table in (("pair", pair), ("other", other)):
            [weights] = [value for key, value in found.items() if f".{name}." in key]
            np.testing.assert_allclose(weights, table, rtol=1e-6, atol=1e-6)


def test_duplicates_are_merged_then_applied_once(ranks: list[dict[str, Any]]) -> None:
    for i in range(2):
        alike([rank["duplicates"][i] for rank in ranks])


def test_batches_of_one_kind_train_and_evaluate(ranks: list[dict[str, Any]]) -> None:
    alike([rank["kinds"]["trained"] for rank in ranks])
    for me, rank in enumerate(ranks):
        for hot, plain in rank["kinds"]["looked_up"]:
            for name, rows in plain.items():
                np.testing.assert_allclose(hot[name], rows, rtol=1e-6, atol=1e-6)
        misses, all_hits, empty, mixed = rank["kinds"]["served"]
        assert misses == [[0, 0], [5, 3]] and all_hits == [[4, 2], [4, 2]] and empty == [[0, 0], [0, 0]]
        assert mixed == (all_hits if me else empty)


def test_edited_rows_are_what_every_rank_looks_up_next(ranks: list[dict[str, Any]]) -> None:
    for rank in ranks:
        assert {value for rows in rank["edited"].values() for row in rows for value in row} == {7.5}


def test_a_row_that_leaves_and_comes_back_keeps_its_state(ranks: list[dict[str, Any]]) -> None:
    for rank in ranks:
        of = rank["moved_and_back"]
        assert of["ids"] == ranks[0]["moved_and_back"]["ids"]
        assert of["ids"][0] == [0, 1, 2, 3] and of["ids"][2] == [4, 5, 6, 7] and of["ids"][-1] == [0, 1, 2, 3]
        for plain, hot in of["losses"]:
            assert hot == pytest.approx(plain, rel=1e-6)
        assert of["row"]["fa"] == of["row"]["fb"] and any(of["row"]["fa"][0])
    plain, hot = (merged([rank["moved_and_back"]["tables"][i] for rank in ranks]) for i in range(2))
    close(plain, hot)


def test_looking_up_leaves_no_trace(ranks: list[dict[str, Any]]) -> None:
    tables = merged([rank["looked_at"][0][2] for rank in ranks])
    [pair], [other] = ([value for key, value in tables.items() if f".{name}." in key] for name in ("pair", "other"))
    for rank in ranks:
        for same, seen, _ in rank["looked_at"]:
            assert same
            for feature, table, ids in (("fa", pair, [9, 8]), ("fb", pair, [7, 3]), ("fc", other, [38, 0])):
                assert (np.array(seen[feature], np.float32) == table[ids].astype(np.float32)).all()


def test_an_id_without_a_row_is_named() -> None:
    [said] = run_ranks(refused_alone, 1)
    for i, id in enumerate((40, 41, -1, 2**40)):
        (of_thin, thin), (of_hot, hot) = said[i], said[4 + i]
        assert of_thin == of_hot == id
        assert f"id {id} of table other" in thin and "0 to 39" in thin
        assert f"feature 'fc' has id {id}, outside its table of 40 rows" in hot
