"""A model trained briefly on one rank, and its tables looked at: `pipelines.table_profile` says what is measured."""

from __future__ import annotations

import logging
import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch.nn import functional
from torchrec.datasets.utils import Batch

from compression import Codec, Relative, inspect
from compression.bounds import Curve, Shadow
from compression.inputs import source
from compression.quantize import grid, wire_bound
from compression.select import try_chains
from compression.wire import CHAINS
from compression.workspace import Workspace
from pipelines.dataset import Dataset, module_name
from pipelines.errors import UserError
from pipelines.job import DivergedError, Job
from pipelines.loader import Loader, job_loader
from pipelines.model import TABLE_MARK, table_configs
from pipelines.options import CacheOptions, ShardingOptions, link_bytes
from pipelines.table_profile import SMALL, Lookup, TableProfile, lasting_error
from pipelines.trainable import Trainable, build_trainable

BOUNDS = tuple(round(0.001 * 2 ** (i / 2), 6) for i in range(17))
"""Relative, 0.1 % to 25.6 %."""


class Profiler:
    """Trains a model on one rank, and profiles its tables.

    Args:
        bounds: relative, ascending.

    Raises:
        UserError: what the user gave does not fit together.
        DivergedError: the loss is not finite after training.
    """

    def __init__(self, job: Job, dataset: Dataset, device: torch.device, bounds: Sequence[float] = BOUNDS) -> None:
        # It looks at every row on its way, so none is on every rank; training has the same numbers either way.
        job = replace(job, cache=CacheOptions())
        self._job, self._dataset, self._bounds = job, dataset, tuple(bounds)
        self._configs = table_configs(job.model, dataset)
        self._trainable: Trainable = build_trainable(job, dataset, device)
        self._codec = Codec(link=link_bytes(job.exchange), exact=False)
        self.profiles = [TableProfile(c.feature_names[0], c.embedding_dim, self._bounds) for c in self._configs]
        self.batches = 0
        self.losses: list[float] = []

    def train(self, steps: int, advance: Callable[[int, int], None]) -> None:
        """Take the first steps of the run."""
        with_data = self._loader(self._job.data.train_split).train_batches(0)
        feed = islice(with_data, steps)
        try:
            for step in range(steps):
                self.losses.append(float(self._trainable.pipeline.progress(feed)[0]))
                advance(step + 1, steps)
        except StopIteration:
            pass
        finally:
            with_data.close()
        if not math.isfinite(self.losses[-1]):
            raise DivergedError(f"the loss is {self.losses[-1]} after {len(self.losses)} steps")

    def probe(self, batches: int, advance: Callable[[int, int], None]) -> None:
        """Profile the tables on held-out batches."""
        self._trainable.pipeline.detach()
        self._model: Any = self._trainable.model.module.model
        self._model.eval()
        self._weights, self._accumulators = self._read_tables()
        stream = self._loader(self._job.data.valid_split).eval_batches()
        try:
            for batch, rows in islice(stream, batches):
                if rows == batch.labels.numel():  # the last one is filled up with rows that do not count
                    self._probe(batch)
                    self.batches += 1
                advance(self.batches, batches)
        finally:
            stream.close()
        if not self.batches:
            raise UserError(
                "no full batch", where=f"split '{self._job.data.valid_split}'", fix="use a smaller train.batch_size"
            )

    def curves(self, ranks: int) -> tuple[dict[str, Curve], dict[str, Curve]]:
        """Of rows and of gradients by table; bytes are those that one of so many ranks asks others for in a step."""
        share = (ranks - 1) / ranks
        rows = {p.table: p.rows.curve(self.batches, share) for p in self.profiles}
        return rows, {p.table: p.gradients.curve(self.batches, share, p.cost_of_error) for p in self.profiles}

    def try_chains(self, profile: TableProfile, bound: float) -> dict[str, dict[str, float]]:
        """Ratio, and GB/s of raw bytes in and out, of each chain on rows of a table at a relative bound."""
        one = source(profile.sample)
        grids = np.array([grid(wire_bound(bound * one.value_range()), False)], np.float32)
        trials = try_chains(one, grids, Workspace(decode=False), Workspace(decode=True)) if one.size else {}
        names = {number: name for name, number in CHAINS.items()}
        return {
            names[chain]: {"ratio": t.ratio, "encode_gb_s": t.encode / 1e9, "decode_gb_s": t.decode / 1e9}
            for chain, t in trials.items()
        }

    def _loader(self, split: str) -> Loader:
        return job_loader(self._job, self._dataset, split, rank=0, world_size=1)

    def _read_tables(self) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
        """Weights [rows, D], and row-wise accumulators [rows] if the optimiser has them, by module name."""
        weights = {
            key.split(TABLE_MARK)[1].removesuffix(".weight"): value.local_shards()[0].tensor
            for key, value in self._trainable.model.state_dict().items()
            if TABLE_MARK in key
        }
        found = {}
        for key, state in self._trainable.model.fused_optimizer.state_dict()["state"].items():
            for name, value in state.items():
                table = key.split(TABLE_MARK)[1].removesuffix(".weight")
                if name.endswith("momentum1") and value.local_shards()[0].tensor.dim() == 1:
                    found[table] = value.local_shards()[0].tensor
        return weights, found

    def _probe(self, batch: Batch) -> None:
        lookups = [self._lookup(batch, table) for table in range(len(self._configs))]
        modes = [c.pooling.name.lower() for c in self._configs]
        pooled = [one.pool(one.rows, mode).requires_grad_() for one, mode in zip(lookups, modes, strict=True)]
        embedded = self._model.dense_arch(batch.dense_features).detach()
        logits = self._logits(embedded, pooled)
        loss = functional.binary_cross_entropy_with_logits(logits, batch.labels.float())
        grads = torch.autograd.grad(loss, pooled)
        labels = batch.labels.numpy()
        with torch.no_grad():
            for table, profile in enumerate(self.profiles):
                one, exact = lookups[table], list(pooled)
                self._describe(profile, one)
                for i, bound in enumerate(self._bounds):
                    out, size = self._round_trip(one.rows.numpy(), bound)
                    exact[table] = one.pool(torch.from_numpy(out), modes[table])
                    shadow = Shadow.of(logits.numpy(force=True), self._logits(embedded, exact).numpy(), labels)
                    self._add_rows(profile, i, one, out, size, shadow)
                self._add_gradients(profile, table, one, grads[table], modes[table])

    def _lookup(self, batch: Batch, table: int) -> Lookup:
        config = self._configs[table]
        jagged = batch.sparse_features[config.feature_names[0]]
        ids, inverse = torch.unique(jagged.values(), return_inverse=True)
        rows = self._weights[config.name][ids].clone()
        return Lookup(rows, ids, inverse, jagged.offsets()[:-1].long())

    def _logits(self, embedded: torch.Tensor, pooled: Sequence[torch.Tensor]) -> torch.Tensor:
        projections = getattr(self._model.sparse_arch, "projections", {})
        names = [module_name(profile.table) for profile in self.profiles]
        each = [projections[n](p) if n in projections else p for n, p in zip(names, pooled, strict=True)]
        mixed = self._model.inter_arch(dense_features=embedded, sparse_features=torch.stack(each, dim=1))
        logits: torch.Tensor = self._model.over_arch(mixed).squeeze(-1)
        return logits

    def _round_trip(self, table: NDArray[np.float32], bound: float) -> tuple[NDArray[np.float32], int]:
        """A table as it is decoded, and its bytes on the wire."""
        out = np.empty_like(table)
        if not table.size:
            return out, 0
        payload = self._codec.encode([table], Relative(bound), self._job.exchange.chain)
        self._codec.decode(payload, [out])
        return out, sum(section["bytes"] for section in inspect(payload))

    def _describe(self, profile: TableProfile, one: Lookup) -> None:
        if one.rows.numel():
            profile.value_range += float(one.rows.max() - one.rows.min())
            profile.square += float(one.rows.square().mean())
        profile.sample = one.rows.numpy()
        profile.distinct += one.rows.size(0)
        profile.lookups += one.inverse.numel()

    def _add_rows(
        self, profile: TableProfile, i: int, one: Lookup, out: NDArray[np.float32], size: int, shadow: Shadow
    ) -> None:
        profile.rows.bytes[i] += size
        profile.rows.harm[i] += shadow.curvature / max(shadow.loss, SMALL)
        profile.shadows[i] = Shadow(*(a + b for a, b in zip(profile.shadows[i], shadow, strict=True)))
        if out.size:
            profile.equal[i] += 1 - np.unique(out, axis=0).shape[0] / out.shape[0]
            errors = np.square(out.astype(np.float64) - one.rows.numpy()).mean(axis=1)
            profile.squared_error[i] += errors[one.inverse.numpy()].mean()

    def _add_gradients(self, profile: TableProfile, table: int, one: Lookup, grad: torch.Tensor, mode: str) -> None:
        """Needs the rows of this batch."""
        lengths = torch.diff(one.offsets, append=torch.tensor([one.inverse.numel()]))
        of_lookups = (grad / lengths.clamp(min=1).unsqueeze(1) if mode == "mean" else grad).repeat_interleave(
            lengths, 0
        )
        sums = torch.zeros_like(one.rows).index_add_(0, one.inverse, of_lookups)
        counts = torch.bincount(one.inverse, minlength=one.ids.numel()).double().numpy()
        square = sums.square().mean(dim=1).double().numpy() + SMALL
        accumulator = self._accumulator(table, one, square)
        scale = self._job.optim.sparse_lr**2 * counts / max(counts.sum(), 1) / accumulator
        updates = np.clip(accumulator / square, 1, len(self.losses))
        for i, bound in enumerate(self._bounds):
            out, size = self._round_trip(sums.numpy(), bound)
            profile.gradients.bytes[i] += size
            profile.gradients.harm[i] += float((scale * lasting_error(sums.double().numpy(), out, updates)).sum())

    def _accumulator(self, table: int, one: Lookup, square: NDArray[np.float64]) -> NDArray[np.float64]:
        """What the square of a step's change of a row is divided by, float64 [distinct]; square: of its gradient."""
        if self._job.optim.sparse == "sgd":
            return np.ones(one.ids.numel())
        found = self._accumulators.get(self._configs[table].name)
        # A row that was never trained has taken no step: this gradient's own square is what its first is divided by.
        return square if found is None else np.maximum(found[one.ids].double().numpy(), square)


def profile(
    job: Job,
    dataset: Dataset,
    *,
    steps: int,
    batches: int,
    advance: Callable[[str, int, int], None],
) -> Profiler:
    """Train and probe in this process, as one rank of its own.

    Args:
        advance: called with what is done, how much of it, and of how much.
    """
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        # The placement of the run is for its ranks, not for this one; and it needs no exchange.
        exchange = job.exchange.model_copy(update={"codec": "none", "dense": "none"})
        own = replace(job, sharding=ShardingOptions(), exchange=exchange)
        with quiet():
            profiler = Profiler(own, dataset, torch.device("cpu"))
            profiler.train(steps, lambda done, total: advance("train", done, total))
        profiler.probe(batches, lambda done, total: advance("probe", done, total))
        return profiler
    finally:
        dist.destroy_process_group()


@contextmanager
def quiet() -> Iterator[None]:
    """Without what TorchRec and torch say of their own deprecations; a run's workers keep that in their logs."""
    loggers = [logging.getLogger(name) for name in ("", "torchrec", "torch.fx")]
    levels = [logger.level for logger in loggers]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        try:
            yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)
