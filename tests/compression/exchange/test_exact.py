"""A lossless thin exchange trains as TorchRec's own does: at every path, placement and schedule, and for 200 steps."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest

from compression.exchange import exchange_report, thin_sharders
from tests.compression.exchange.models import (
    Bags,
    Sequences,
    batches,
    exact,
    fused,
    sharded,
    torchrec_sharders,
    train,
    weights_of,
)
from tests.ranks import run_ranks

pytestmark = pytest.mark.usefixtures("compiled")


class Case(NamedTuple):
    """What is trained, and how."""

    path: str
    optimizer: str
    kind: str = "bags"
    weighted: bool = False
    columns: bool = False
    schedule: str = "auto"
    steps: int = 20
    adam: bool = False


CASES = [
    Case("row", "rowwise_adagrad"),
    Case("pooled", "sgd", weighted=True),
    Case("pooled", "rowwise_adagrad", columns=True, schedule="all_to_all"),
    Case("row", "sgd", kind="two", weighted=True, columns=True, schedule="all_to_all"),
    Case("row", "sgd", kind="sequences"),
    Case("row", "rowwise_adagrad", kind="sequences", columns=True),
]
LONG = [
    Case(path, optimizer, steps=200, adam=adam)
    for optimizer, adam in (("sgd", False), ("rowwise_adagrad", True))
    for path in ("row", "pooled")
]


def trained(case: Case, thin: bool) -> dict[str, Any]:
    """Losses, weights and the report of one run."""
    options = {"fused_params": fused(case.optimizer)}
    config = exact(case.path, schedule=case.schedule, verify=case.steps < 100)
    sharders = thin_sharders(config, **options) if thin else torchrec_sharders(**options)
    model = Sequences() if case.kind == "sequences" else Bags(case.weighted, 2 if case.kind == "two" else 1)
    dmp = sharded(model, sharders, case.columns)
    losses = train(dmp, batches(case.steps, weighted=case.weighted), case.adam)
    return {"losses": losses, "weights": weights_of(dmp), "tables": [row["table"] for row in exchange_report(dmp)]}


def both_ways(cases: list[Case]) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """By TorchRec and by the thin exchange; cases that differ in the path alone share the run of TorchRec."""
    plain: dict[Case, dict[str, Any]] = {}
    found = []
    for case in cases:
        as_torchrec = case._replace(path="", schedule="")
        if as_torchrec not in plain:
            plain[as_torchrec] = trained(case._replace(path="auto", schedule="auto"), thin=False)
        found.append((plain[as_torchrec], trained(case, thin=True)))
    return found


def pairs(ranks: int, cases: list[Case]) -> Iterator[tuple[Case, dict[str, Any], dict[str, Any]]]:
    for results in run_ranks(both_ways, ranks, cases):
        for case, (plain, thin) in zip(cases, results, strict=True):
            assert not plain["tables"] and {"user", "item", "tag"} <= set(thin["tables"])
            assert thin["weights"].keys() == plain["weights"].keys()
            yield case, plain, thin


def check(ranks: int, cases: list[Case]) -> None:
    """Bit for bit where sums have one order, which are those of pooled rows and of one rank; else to rounding."""
    for case, plain, thin in pairs(ranks, cases):
        if case.path == "pooled" or ranks == 1:
            assert thin["losses"] == plain["losses"], case
            assert thin["weights"] == plain["weights"], case
            continue
        np.testing.assert_allclose(thin["losses"], plain["losses"], rtol=1e-6, atol=5e-7, err_msg=str(case))
        for name, weights in plain["weights"].items():
            np.testing.assert_allclose(thin["weights"][name], weights, rtol=1e-6, atol=1e-6, err_msg=f"{case} {name}")


@pytest.mark.parametrize("ranks", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_trains_as_torchrec(ranks: int) -> None:
    check(ranks, CASES)


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_200_steps(ranks: int) -> None:
    check(ranks, LONG)
