"""What others ran into with exchanges of embeddings: averaging, empty messages, layouts of memory, weights."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torchrec.distributed.comm_ops import set_gradient_division
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from compression.exchange import Direction, ExchangeConfig, TablePolicy, thin_sharders
from compression.exchange.shardings import ThinOutputDist
from compression.exchange.tables import Span, cut
from tests.compression.exchange.models import (
    FEATURES,
    MEAN,
    ROWS,
    TABLES,
    WIDTH,
    Bags,
    batch_of,
    exact,
    fused,
    sharded,
    torchrec_sharders,
    weights_of,
)
from tests.ranks import run_ranks

# One process starts the ranks for all tests.
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("compiled"), pytest.mark.xdist_group("exchange_cases")]
RANKS = (1, 2, 3, 4)
GLOBAL_ROWS = 12
PATHS = ("row", "pooled")
BOUND = 0.01


class Global:
    """A batch of all ranks: bags of each sample and feature, their weights, and the gradient of the pooled rows."""

    def __init__(self) -> None:
        random = np.random.default_rng(5)
        self.lengths = random.integers(0, 4, (len(FEATURES), GLOBAL_ROWS))
        self.bags = [[random.integers(0, ROWS[f], n) for n in of] for f, of in zip(FEATURES, self.lengths, strict=True)]
        self.weights = [[random.random(n, np.float32) for n in of] for of in self.lengths]
        self.grad = random.standard_normal((GLOBAL_ROWS, WIDTH)).astype(np.float32)

    def part(self, weighted: bool = False) -> KeyedJaggedTensor:
        """This rank's."""
        mine = self.mine
        flat = [torch.from_numpy(np.concatenate([b for of in all_of for b in of[mine]])) for all_of in self._both]
        return KeyedJaggedTensor(
            keys=FEATURES,
            values=flat[0],
            lengths=torch.from_numpy(self.lengths[:, mine].reshape(-1)),
            weights=flat[1] if weighted else None,
            stride=GLOBAL_ROWS // dist.get_world_size(),
        )

    @property
    def mine(self) -> slice:
        rows = GLOBAL_ROWS // dist.get_world_size()
        return slice(dist.get_rank() * rows, (dist.get_rank() + 1) * rows)

    @property
    def _both(self) -> tuple[list[list[NDArray[Any]]], list[list[NDArray[Any]]]]:
        return self.bags, self.weights

    def after_a_step(self) -> dict[str, NDArray[np.float64]]:
        """Tables that were 0, after a step of SGD at rate 1 by the mean over the samples of grad times pooled rows."""
        tables, column = {name: np.zeros((rows, dim)) for name, rows, dim, _, _ in TABLES}, 0
        for name, _, dim, features, pooling in TABLES:
            for feature in features:
                for sample, bag in enumerate(self.bags[FEATURES.index(feature)]):
                    share = 1 / max(len(bag), 1) if pooling == MEAN else 1.0
                    step = self.grad[sample, column : column + dim] * share / GLOBAL_ROWS
                    np.subtract.at(tables[name], bag, step.astype(np.float64))
                column += dim
        return tables


def model(sharders: list[Any], weighted: bool = False) -> Any:
    return sharded(Bags(weighted), sharders)


def pooled(dmp: Any, features: KeyedJaggedTensor) -> torch.Tensor:
    """Float32 [rows, WIDTH], in the order of the features, which the order of the exchange need not be."""
    found = dmp.module.ebcs[0](features).to_dict()
    return torch.cat([found[feature] for feature in FEATURES], 1)


def averaged(sharders: list[Any], divide: bool = True) -> dict[str, list[float]]:
    """This rank's tables after the step of `Global.after_a_step`."""
    data, dmp = Global(), model(sharders)
    with torch.no_grad():
        for weight in dmp.state_dict().values():
            for shard in weight.local_shards() if hasattr(weight, "local_shards") else ():
                shard.tensor.zero_()
    set_gradient_division(divide)
    try:
        pooled(dmp, data.part()).backward(
            torch.from_numpy(data.grad[data.mine]) / (GLOBAL_ROWS // dist.get_world_size())
        )
    finally:
        set_gradient_division(True)
    return {name.split(".")[-2]: values for name, values in weights_of(dmp).items() if "over" not in name and values}


def weighted(config: ExchangeConfig) -> list[list[float]]:
    """Pooled rows of this rank's part of the batch."""
    rows: list[list[float]] = pooled(model(thin_sharders(config), weighted=True), Global().part(weighted=True)).tolist()
    return rows


def empty(path: str) -> list[list[Any]]:
    """Shapes and dtypes where a rank has no rows, where it has no ids, and where nobody has any."""
    dmp, first, found = model(thin_sharders(exact(path))), dist.get_rank() == 0, []
    for batch in (
        batch_of(0, 0 if first else 4),
        batch_of(1, 4, without=FEATURES if first else ()),
        batch_of(2, 4, without=FEATURES),
        batch_of(3, 0),
    ):
        out = pooled(dmp, batch)
        out.sum().backward()
        found.append([list(out.shape), str(out.dtype), batch.stride()])
    return found


def strided(tensor: torch.Tensor) -> torch.Tensor:
    """Equal, but not contiguous."""
    other = torch.stack([tensor, tensor + 1], -1)[..., 0]
    assert tensor.numel() < 2 or not other.is_contiguous()
    return other


def layouts(path: str) -> list[bool]:
    """Whether inputs, lookups and gradients that are not contiguous give the same weights as contiguous ones."""
    data, found = Global(), []
    grad, part = torch.from_numpy(data.grad[data.mine]), data.part(weighted=True)
    expanded = torch.ones(1, 1).expand(grad.shape)
    as_strided = KeyedJaggedTensor(
        keys=FEATURES,
        values=strided(part.values()),
        lengths=strided(part.lengths()),
        weights=strided(part.weights()),
        stride=part.stride(),
    )
    forward = ThinOutputDist.forward

    def from_strided(self: ThinOutputDist, rows: torch.Tensor, context: Any = None) -> Any:
        return forward(self, rows.t().contiguous().t(), context)

    for features, gradient, receive, same in (
        (part, strided(grad), forward, grad),
        (part, grad.t().contiguous().t(), forward, grad),
        (part, expanded, forward, torch.ones_like(grad)),
        (part, grad, from_strided, grad),
        (as_strided, grad, forward, grad),
    ):
        both = []
        for inputs, g, how in ((part, same.clone(), forward), (features, gradient, receive)):
            dmp = model(thin_sharders(exact(path), fused_params=fused("sgd")), weighted=True)
            with patch.object(ThinOutputDist, "forward", how):
                out = dmp.module.ebcs[0](inputs).values()
            out.backward(g)
            both.append([out.tolist(), weights_of(dmp)])
        found.append(both[0] == both[1])
    return found


def misfits(path: str) -> list[str]:
    """Bags of other ids than there are, on all ranks: refused before anything is sent, so that the next batch works."""
    dmp, part, said = model(thin_sharders(exact(path))), Global().part(), []
    # TorchRec looks at a first batch only. On one rank it hands later ones on as they are.
    for _ in range(2 if dist.get_world_size() == 1 else 1):
        for values in (part.values()[:-1], torch.cat([part.values(), torch.tensor([0])])):
            wrong = KeyedJaggedTensor(keys=FEATURES, values=values, lengths=part.lengths(), stride=part.stride())
            with pytest.raises(ValueError) as error:
                pooled(dmp, wrong)
            said.append(str(error.value))
        pooled(dmp, part).sum().backward()
    return said


def on_a_rank() -> dict[str, Any]:
    sgd = {"fused_params": fused("sgd", rate=1.0)}
    ways = {"torchrec": torchrec_sharders(**sgd)} | {path: thin_sharders(exact(path), **sgd) for path in PATHS}
    lossy = Direction(BOUND, "bitpack")
    return {
        "averaged": {way: averaged(sharders) for way, sharders in ways.items()},
        "added up": {way: averaged(sharders, divide=False) for way, sharders in ways.items()},
        "exact": {path: weighted(exact(path)) for path in PATHS},
        "lossy": {path: weighted(ExchangeConfig(default=TablePolicy(path, lossy, lossy))) for path in PATHS},  # type: ignore[arg-type]
        "empty": [empty(path) for path in PATHS],
        "layouts": [layouts(path) for path in PATHS],
        "misfits": [misfits(path) for path in PATHS],
    }


@pytest.fixture(scope="module")
def by_ranks() -> dict[int, list[dict[str, Any]]]:
    return {ranks: run_ranks(on_a_rank, ranks) for ranks in RANKS}


def test_tables_see_the_mean_over_the_global_batch(by_ranks: dict[int, list[dict[str, Any]]]) -> None:
    expected = Global().after_a_step()
    for ranks, results in by_ranks.items():
        for key, factor in (("averaged", 1), ("added up", ranks)):
            for way in ("torchrec", *PATHS):
                tables = {name: values for found in results for name, values in found[key][way].items()}
                assert tables.keys() == expected.keys()
                for name, values in tables.items():
                    np.testing.assert_allclose(
                        values, factor * expected[name].reshape(-1), rtol=0, atol=1e-6, err_msg=f"{ranks} {way} {name}"
                    )


def test_weighted_bags_do_not_depend_on_the_number_of_ranks(by_ranks: dict[int, list[dict[str, Any]]]) -> None:
    data = Global()
    # By bag and column: of rows, each error is multiplied by the weight; of pooled rows there is one a bag.
    sums = np.array([[of.sum() for of in each] for each in data.weights]).T
    rows = np.repeat(sums, [dim for _, _, dim, features, _ in TABLES for _ in features], axis=1)
    limits = {"row": BOUND * rows + 1e-6, "pooled": np.full_like(rows, BOUND)}
    alone = np.array(by_ranks[1][0]["exact"]["row"])
    assert alone.shape == (GLOBAL_ROWS, WIDTH) and np.isfinite(alone).all()
    for ranks, results in by_ranks.items():
        for path in PATHS:
            exactly = np.concatenate([found["exact"][path] for found in results])
            about = np.concatenate([found["lossy"][path] for found in results])
            assert (exactly == alone).all(), (ranks, path)
            assert (np.abs(about - alone) <= limits[path]).all(), (ranks, path)
            assert (about == alone).all() == (ranks == 1)


@pytest.mark.parametrize("ranks", RANKS)
def test_who_sends_or_gets_nothing_goes_on(by_ranks: dict[int, list[dict[str, Any]]], ranks: int) -> None:
    for found in by_ranks[ranks]:
        for of_path in found["empty"]:
            assert [shape for shape, _, _ in of_path] == [[rows, WIDTH] for _, _, rows in of_path]
            assert {dtype for _, dtype, _ in of_path} == {"torch.float32"}


@pytest.mark.parametrize("ranks", RANKS)
def test_layouts_of_memory_do_not_matter(by_ranks: dict[int, list[dict[str, Any]]], ranks: int) -> None:
    for found in by_ranks[ranks]:
        assert found["layouts"] == [[True] * 5] * 2


def test_bags_that_do_not_fit_their_ids_are_refused(by_ranks: dict[int, list[dict[str, Any]]]) -> None:
    for results in by_ranks.values():
        for found in results:
            for said in found["misfits"]:
                assert all(text.startswith("Sum of lengths must equal the number of values") for text in said[:2])
                assert all(" ids of ['user', 'item', 'last', 'tag'], but bags of " in text for text in said[2:])
    assert [len(said) for said in by_ranks[1][0]["misfits"]] == [4, 4]


@pytest.mark.parametrize("total", [(1 << 31) - 1, 1 << 31, 1 << 33])
def test_messages_of_many_values_are_cut(total: int) -> None:
    dims, rows = np.array([64, 16, 1]), np.array([total // 128, total // 64, 0])
    rows[2] = total - int((rows * dims)[:2].sum())
    chunks = cut(Span(0, rows), dims, 1 << 28)
    assert [chunk.start for chunk in chunks] == [0, *(chunk.stop for chunk in chunks[:-1])]
    assert chunks[-1].stop == total and all(0 < chunk.most_bytes <= (1 << 28) + 200 for chunk in chunks)
    for table in range(3):
        pieces = [
            (int(c.begins[i]), int(c.rows[i])) for c in chunks for i in np.flatnonzero(c.tables == table).tolist()
        ]
        ends = np.cumsum([count for _, count in pieces]).tolist()
        assert [begin for begin, _ in pieces] == [0, *ends[:-1]] and ends[-1] == rows[table]
