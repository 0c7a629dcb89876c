"""A lossless thin exchange trains as TorchRec's own does, at every path and placement."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torchrec.distributed.embedding import EmbeddingCollectionSharder
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder

from compression.exchange import ExchangeConfig, TablePolicy, Direction, exchange_report, thin_sharders
from tests.compression.exchange.models import Bags, Sequences, fused, sharded, train, weights_of
from tests.ranks import run_ranks

EXACT = Direction()
PATHS = ("row", "pooled")
pytestmark = pytest.mark.usefixtures("compiled")


def exact(path: str, **others: Any) -> ExchangeConfig:
    return ExchangeConfig(default=TablePolicy(path=path, forward=EXACT, backward=EXACT), **others)  # type: ignore[arg-type]


def both_ways(kind: str, path: str, optimizer: str, steps: int, weighted: bool, columns: bool, schedule: str) -> Any:
    """Losses and weights by TorchRec and by the thin exchange, and the report of the latter."""
    found = []
    for thin in (False, True):
        options = {"fused_params": fused(optimizer)}
        if thin:
            sharders = thin_sharders(exact(path, schedule=schedule, verify=True), **options)
        else:
            sharders = [EmbeddingBagCollectionSharder(**options), EmbeddingCollectionSharder(**options)]
        torch.manual_seed(1)
        model = Sequences() if kind == "sequences" else Bags(weighted, 2 if kind == "two" else 1)
        dmp = sharded(model, sharders, columns)
        losses = train(dmp, steps, weighted=weighted)
        found.append({"losses": losses, "weights": weights_of(dmp), "report": exchange_report(dmp)})
    return found


@pytest.mark.parametrize(
    ("ranks", "kind", "path", "optimizer", "weighted", "columns", "schedule"),
    [
        (1, "bags", "row", "sgd", False, False, "auto"),
        (2, "bags", "row", "rowwise_adagrad", False, False, "auto"),
        (2, "bags", "pooled", "sgd", True, False, "auto"),
        (2, "bags", "pooled", "rowwise_adagrad", False, True, "auto"),
        (2, "two", "row", "sgd", True, True, "all_to_all"),
        (2, "sequences", "row", "sgd", False, False, "auto"),
        (2, "sequences", "row", "rowwise_adagrad", False, True, "auto"),
        (4, "bags", "row", "sgd", True, False, "auto"),
        (4, "bags", "pooled", "rowwise_adagrad", False, False, "all_to_all"),
    ],
)
def test_trains_as_torchrec(
    ranks: int, kind: str, path: str, optimizer: str, weighted: bool, columns: bool, schedule: str
) -> None:
    for plain, thin in run_ranks(both_ways, ranks, kind, path, optimizer, 20, weighted, columns, schedule):
        np.testing.assert_allclose(thin["losses"], plain["losses"], rtol=1e-5)
        assert thin["weights"].keys() == plain["weights"].keys()
        for name, weights in plain["weights"].items():
            np.testing.assert_allclose(thin["weights"][name], weights, rtol=1e-4, atol=1e-6, err_msg=name)
        assert {row["table"] for row in thin["report"]} >= {"user", "item", "tag"}
        assert not plain["report"]
