"""The hot rows of a run: which they are, what keeps them in step, and how they get from their owners and back."""

from __future__ import annotations

import functools
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.distributed as dist
from torchrec.distributed.comm_ops import get_gradient_division
from torchrec.distributed.model_parallel import DistributedModelParallel

from cache.adapt import choose, moved
from cache.audit import blocks, checksums, compare
from cache.hot_rows import HotRows
from cache.optim import STATES
from cache.replica import Replica
from cache.split import HotLookups
from cache.sync import TorchSync
from cache.tables import HotSet, HotTable, Ints, Slots
from cache.warm_up import warm_up
from pipelines.groups import Groups
from pipelines.hot_batch import Splitter
from pipelines.hot_recent import Recent
from pipelines.job import Job, Metrics
from pipelines.model import HotLookup
from pipelines.optim import lr_factor
from pipelines.owner_rows import OwnerRows
from pipelines.thin import compile_lock

if TYPE_CHECKING:
    from compression.exchange import ExchangeConfig


@functools.cache
def compile_hot() -> None:
    """Compile or load what hot rows run; see `pipelines.thin.compile_exchange`."""
    with compile_lock():
        warm_up()


class Hot:
    """Hot rows of a sharded model whose tables have their values. All ranks must make it, and call all but `describe`,
    at once.

    Attributes:
        rows: what the model looks up.
        splitter: what its batches must go through.
        columns: names of the tables in the data set.
        served: int64 [2, tables]: hits and lookups of the batches that were trained on, until somebody sets them to 0.
    """

    def __init__(
        self,
        tables: list[HotTable],
        model: DistributedModelParallel,
        job: Job,
        groups: Groups,
        thin: ExchangeConfig | None,
    ) -> None:
        slots = Slots(tables)
        optim = self._optim = job.optim
        self._options = job.cache
        replica = Replica(slots, optim.sparse, **({} if optim.sparse == "sgd" else {"eps": optim.eps}))
        sync = _sync(slots, thin, groups.replica)
        self._rate = optim.sparse_lr
        self.rows = HotRows(replica, sync, lambda: self._rate, _divisor, self._observe)
        self.columns = [table.features[0] for table in tables]
        self.served = torch.zeros(2, len(tables), dtype=torch.int64)
        adapts = job.cache.adapt_every > 0
        self.splitter = Splitter(HotSet.first_rows(slots), distinct=adapts)
        self._recent = Recent(slots, groups.replica) if adapts else None
        self._owners = OwnerRows(model, list(STATES[optim.sparse]), groups.replica)
        self._group = groups.replica
        for module in model.modules():
            if isinstance(module, HotLookup):
                module.rows = self.rows
                module.thin_links = [sync] if thin else []
        self.refresh()

    def describe(self) -> str:
        """A line for people."""
        slots = self.rows.replica.slots
        rows = sum(table.rows for table in slots.tables)
        size = 4 * (slots.values + sum(state.size for state in self.rows.replica.optimizer.state.values()))
        return f"hot rows: {slots.size:,} of {rows:,} on every rank, {size / 1e6:.1f} MB with their optimiser's state"

    def refresh(self) -> None:
        """Read the hot rows and their state from their owners: after whatever changed tables."""
        hot = self.splitter.hot
        self._fetch([np.arange(ids.size) for ids in hot.ids])

    def write_back(self) -> None:
        """Write the hot rows and their state where their owners keep them: before whatever reads tables. Sends nothing,
        for each rank has them."""
        self._return([np.arange(ids.size) for ids in self.splitter.hot.ids])

    def before(self, step: int) -> None:
        """Set the learning rate of a step, counted from 0, as `set_learning_rates` does for the tables' owners."""
        self._rate = self._optim.sparse_lr * lr_factor(step, self._optim)

    def audit_if_due(self, step: int) -> None:
        """Compare the replicas of all ranks, if it is time after so many steps.

        Raises:
            cache.audit.DivergedReplicaError: they are not the same; on all ranks.
        """
        if self._options.audit_every and step % self._options.audit_every == 0:
            self.audit()

    def audit(self) -> None:
        """As `audit_if_due`, now."""
        self.rows.settle()
        mine = torch.from_numpy(checksums(self.rows.replica, self.splitter.hot))
        of_ranks = [torch.empty_like(mine) for _ in range(self._group.size())]
        dist.all_gather(of_ranks, mine, group=self._group)
        compare(blocks(self.splitter.hot), torch.stack(of_ranks).numpy())

    def adapt(self) -> tuple[str, Metrics]:
        """Let rows that were looked up more of late take the place of hot ones. No batch may be in the pipeline.

        Returns:
            What was done, for people, and metrics; the same on all ranks.
        """
        assert self._recent is not None
        hot, cost = self.splitter.hot, self._options.adapt_cost * self._group.size()
        moves = [choose(own, ids, *cold, cost) for ids, (own, cold) in zip(hot.ids, self._recent.take(), strict=True)]
        count = sum(move.slots.size for move in moves)
        if count:
            slots = [move.slots for move in moves]
            self._return(slots)
            self.splitter.hot = moved(hot, moves)
            self._fetch(slots)
        return f"{count:,} of {hot.slots.size:,} hot rows replaced", {"cache/replaced": float(count)}

    def save(self, folder: Path) -> None:
        """Keep in a checkpoint which rows are hot and what this rank has counted; rows are in the tables."""
        if self._recent is not None:
            folder.mkdir(parents=True, exist_ok=True)
            ids = [torch.from_numpy(of) for of in self.splitter.hot.ids]
            torch.save({"ids": ids, "recent": self._recent.state()}, folder / _file(dist.get_rank()))

    def load(self, folder: Path) -> None:
        """Go on from a checkpoint whose tables have been loaded; with other settings it begins with the first rows."""
        saved = folder / _file(0)
        if self._recent is not None and saved.exists():
            ids = tuple(of.numpy() for of in torch.load(saved, weights_only=True)["ids"])
            if [of.size for of in ids] == [of.size for of in self.splitter.hot.ids]:
                self.splitter.hot = replace(self.splitter.hot, ids=ids, version=self.splitter.hot.version + 1)
                own = folder / _file(dist.get_rank())
                if own.exists() and not (folder / _file(dist.get_world_size())).exists():
                    self._recent.restore(torch.load(own, weights_only=True)["recent"])
        self.refresh()

    def _observe(self, lookups: HotLookups) -> None:
        self.served += torch.from_numpy(np.stack([lookups.hits, lookups.lookups]))
        if self._recent is not None:
            self._recent.add(lookups)

    def _fetch(self, slots: list[Ints]) -> None:
        """Read the rows of some slots of each table from their owners."""
        self.rows.settle()
        for i, (table, some) in enumerate(zip(self.splitter.hot.slots.tables, slots, strict=True)):
            if not some.size:
                continue
            views = self.rows.replica.read(i)
            like = {name: values[some] for name, values in views.items()}
            for name, values in self._owners.read(table.name, self.splitter.hot.ids[i][some], like).items():
                views[name][some] = values

    def _return(self, slots: list[Ints]) -> None:
        """Write the rows of some slots of each table where their owners keep them."""
        self.rows.settle()
        for i, (table, some) in enumerate(zip(self.splitter.hot.slots.tables, slots, strict=True)):
            values = {name: array[some] for name, array in self.rows.replica.read(i).items()}
            self._owners.write(table.name, self.splitter.hot.ids[i][some], values)


def _sync(slots: Slots, thin: ExchangeConfig | None, group: dist.ProcessGroup) -> Any:
    if thin is None:
        return TorchSync(slots, group)
    from pipelines.replica_sync import thin_sync

    return thin_sync(slots, thin, group)


def _file(rank: int) -> str:
    return f"hot_{rank}.pt"


def _divisor() -> float:
    return dist.get_world_size() if get_gradient_division() else 1.0
