"""One rank fails, or is set up otherwise: it says why, and the others end within the timeout and name the tables."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch.distributed as dist
from torch.multiprocessing.spawn import ProcessExitedException
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from compression import Relative
from compression.exchange import Direction, ExchangeConfig, ExchangeError, TablePolicy, link, thin_sharders
from compression.exchange.sharders import links
from compression.exchange.step import Step
from tests.compression.exchange.models import (
    FEATURES,
    Bags,
    batch_of,
    batches,
    error_of,
    exact,
    plan_of,
    sharded,
    train,
)
from tests.ranks import run_ranks

# One process starts the ranks for all tests.
pytestmark = [pytest.mark.usefixtures("compiled"), pytest.mark.xdist_group("exchange_faults")]
RANKS, CULPRIT = 3, 1


def culprit() -> bool:
    return dist.get_rank() == CULPRIT


def model(group: dist.ProcessGroup, path: str = "row", timeout_s: float = 60.0) -> DistributedModelParallel:
    return sharded(Bags(), thin_sharders(exact(path, timeout_s=timeout_s)), group=group)


def impatient(dmp: DistributedModelParallel) -> None:
    """From now on, so that no step before waits too short on a busy machine."""
    for one in links(dmp):
        for channel in (one.ids, one.rows.channel, one.gradients.channel):
            channel.timeout = timedelta(seconds=1)


# One rank fails.


def bad_id(path: str, id: int) -> Callable[[dist.ProcessGroup], None]:
    def case(group: dist.ProcessGroup) -> None:
        dmp, good = model(group, path), batch_of(1, 8)
        train(dmp, batches(1))
        impatient(dmp)
        values = good.values().clone()
        if culprit():
            values[int(good.offsets()[8])] = id  # the first of the second feature
        train(dmp, [KeyedJaggedTensor(keys=FEATURES, values=values, lengths=good.lengths(), stride=8)])

    return case


def own_code_fails(group: dist.ProcessGroup) -> None:
    """Between the rows that it got and the gradients that it owes."""
    dmp = model(group)
    out = dmp(batch_of(0, 8))
    impatient(dmp)
    if culprit():
        raise ZeroDivisionError("in the model")
    out.sum().backward()


def stops_early(group: dist.ProcessGroup) -> None:
    """It has fewer batches. The others, told once, are told the same again at once."""
    dmp = model(group)
    train(dmp, batches(1))
    impatient(dmp)
    if culprit():
        return
    with pytest.raises(ExchangeError) as first:
        train(dmp, batches(1))
    with pytest.raises(ExchangeError) as again:
        dmp(batch_of(2, 8))
    assert again.value is first.value
    raise again.value


def never_begins(group: dist.ProcessGroup) -> None:
    dmp = model(group, timeout_s=1.0)
    if not culprit():
        train(dmp, batches(1))


FAILS: dict[str, tuple[Callable[[dist.ProcessGroup], None], str, str]] = {
    "an id too large, rows": (bad_id("row", 50), r"IndexError: id 50 of table item \(feature \d, .* 0 to 49", "ids: "),
    "an id too large, pooled": (bad_id("pooled", 1 << 40), r"IndexError: id 1099511627776 of table item", "ids: "),
    "an id below 0, rows": (bad_id("row", -1), "IndexError: id -1 of table item", "ids: "),
    "an id below 0, pooled": (bad_id("pooled", -1), "IndexError: id -1 of table item", "ids: "),
    "its own code fails": (own_code_fails, "ZeroDivisionError: in the model", "gradients: "),
    "it stops early": (stops_early, "", "ids: "),
    "it never begins": (never_begins, "", "before the first batch: "),
}
"""What happens; what the rank that fails says, and how what others say begins."""


# One rank is set up otherwise.


def set_up(mine: ExchangeConfig, others: ExchangeConfig) -> Callable[[dist.ProcessGroup], None]:
    def case(group: dist.ProcessGroup) -> None:
        train(sharded(Bags(), thin_sharders(mine if culprit() else others), group=group), batches(1))

    return case


def other_plan(group: dist.ProcessGroup) -> None:
    sharders, bags = thin_sharders(exact("row")), Bags()
    plan = plan_of(bags, sharders, columns=False, ranks=RANKS, first=int(culprit()))
    train(sharded(bags, sharders, plan=plan, group=group), batches(1))


def another_module(group: dist.ProcessGroup) -> None:
    """It has made a channel more."""
    if culprit():
        next(link._numbers)
    try:
        train(model(group), batches(1))
    finally:
        if not culprit():
            next(link._numbers)


def with_table(policy: TablePolicy) -> ExchangeConfig:
    return ExchangeConfig(tables={"item": policy})


ROW = TablePolicy("row")
DIFFERS: dict[str, tuple[Callable[[dist.ProcessGroup], None], str]] = {
    "path": (set_up(with_table(ROW), with_table(TablePolicy("pooled"))), "tables, paths or placements"),
    "torchrec's own path": (
        set_up(with_table(ROW), with_table(TablePolicy("torchrec"))),
        "tables, paths or placements",
    ),
    "all by torchrec": (
        set_up(ExchangeConfig(default=TablePolicy("torchrec")), ExchangeConfig()),
        "tables, paths or placements",
    ),
    "bound": (
        set_up(
            with_table(TablePolicy("row", Direction(0.1))), with_table(TablePolicy("row", Direction(Relative(0.1))))
        ),
        "settings of the exchange",
    ),
    "chunks": (set_up(ExchangeConfig(chunk_bytes=1000), ExchangeConfig()), "settings of the exchange"),
    "schedule": (set_up(ExchangeConfig(schedule="all_to_all"), ExchangeConfig()), "settings of the exchange"),
    "plan": (other_plan, "tables, paths or placements"),
    "modules": (another_module, "numbers of modules made before"),
}


def all_cases() -> dict[str, str]:
    return {name: error_of(case) for name, (case, *_) in (FAILS | DIFFERS).items()}


@pytest.fixture(scope="module")
def ranks() -> list[dict[str, str]]:
    return run_ranks(all_cases, RANKS)


@pytest.mark.parametrize("name", FAILS)
def test_others_end_when_one_rank_fails(ranks: list[dict[str, str]], name: str) -> None:
    _, by_culprit, begins = FAILS[name]
    said = [found[name] for found in ranks]
    assert re.match(by_culprit, said[CULPRIT]) if by_culprit else not said[CULPRIT], said
    for rank in {*range(RANKS)} - {CULPRIT}:
        assert said[rank].startswith(f"ExchangeError: {begins}"), said
        assert "an id" not in name or "rank 1 said: ids: id " in said[rank], said
        assert "timeout_s" in said[rank] or "closed the connection" in said[rank], said
        assert begins.startswith("before") or re.match(r"ExchangeError: \w+: (user|item|tag)", said[rank]), said


@pytest.mark.parametrize("name", DIFFERS)
def test_ranks_that_are_set_up_otherwise_say_so(ranks: list[dict[str, str]], name: str) -> None:
    _, what = DIFFERS[name]
    for found in ranks:
        assert found[name].startswith(f"ExchangeError: ranks [{CULPRIT}] have other {what}"), found[name]


# One rank dies.


def killed(folder: str, at: str) -> None:
    """What the others say goes to files, since it ends their run."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    dmp = sharded(Bags(), thin_sharders(exact("row", timeout_s=200)))
    train(dmp, batches(1))
    method = getattr(Step, at)

    def dying(self: Step, *arguments: Any) -> Any:
        if culprit():
            os.kill(os.getpid(), signal.SIGKILL)
        return method(self, *arguments)

    with patch.object(Step, at, dying):
        try:
            train(dmp, batches(2))
        except ExchangeError as error:
            (Path(folder) / f"said{dist.get_rank()}").write_text(str(error))


@pytest.mark.parametrize("at", ["receive_rows", "send_gradients"])
def test_a_killed_rank_ends_the_others(at: str, tmp_path: Path) -> None:
    with pytest.raises(ProcessExitedException):
        run_ranks(killed, RANKS, str(tmp_path), at)
    for rank in {*range(RANKS)} - {CULPRIT}:
        said = (tmp_path / f"said{rank}").read_text()
        assert re.match(r"(ids|output_dist|gradients): (user|item|tag), from rank . to rank ", said), said
        assert "closed the connection" in said, said
