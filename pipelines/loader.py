"""Batches of a prepared data set for one rank, decoded ahead in the background."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence

import numpy as np
import torch
from torchrec.datasets.utils import Batch
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from pipelines.dataset import Dataset
from pipelines.errors import UserError
from pipelines.job import Job
from pipelines.order import Window, rank_samples, windows
from pipelines.parts import Columns, PartReader
from pipelines.prefetch import prefetched


class Loader:
    """One rank's batches of one split.

    The order of samples is that of `pipelines.order`, so every rank must be given the same arguments but `rank`.

    Args:
        batch_size: rows per rank and step.
        shuffle, seed, window_groups: the order of train batches; see `pipelines.order.windows`. Evaluation always reads
            in the order of the files.
        prefetch: batches decoded ahead; one window of row groups is decoded ahead besides.
        table_rows: rows of the embedding tables, where they differ from the data set's.
        prepare: what each batch goes through, in the background.

    Attributes:
        rows: rows of the split.
        steps_per_epoch: full global batches of an epoch.
        left_out: rows of an epoch that fill no global batch; with shuffle, other rows in every epoch.

    Raises:
        UserError: no such split, or a part does not match the manifest.
    """

    def __init__(
        self,
        dataset: Dataset,
        split: str,
        *,
        batch_size: int,
        rank: int = 0,
        world_size: int = 1,
        shuffle: bool = False,
        seed: int = 0,
        window_groups: int = 8,
        prefetch: int = 4,
        table_rows: dict[str, int] | None = None,
        prepare: Callable[[Batch], Batch] | None = None,
    ) -> None:
        if batch_size < 1 or not 0 <= rank < world_size or window_groups < 1 or prefetch < 1:
            raise ValueError(f"{batch_size=}, {rank=}, {world_size=}, {window_groups=}, {prefetch=}: out of range")
        self.split, self.batch_size, self.rank, self.world_size = split, batch_size, rank, world_size
        self._shuffle, self._seed, self._window_groups, self._prefetch = shuffle, seed, window_groups, prefetch
        self._reader = PartReader(dataset, split, {**dataset.table_rows, **(table_rows or {})})
        self._prepare = prepare or (lambda batch: batch)
        self._keys = [table.name for table in dataset.manifest.tables]
        self.rows = dataset.split(split).rows
        self.global_batch = batch_size * world_size
        self.steps_per_epoch = self.rows // self.global_batch
        self.left_out = self.rows % self.global_batch

    def steps_left(self, start_sample: int) -> int:
        """Train batches that `train_batches(epoch, start_sample)` yields on every rank."""
        return (self.rows - start_sample) // self.global_batch

    def train_batches(self, epoch: int, start_sample: int = 0) -> Generator[Batch]:
        """Full batches from sample `start_sample` of the epoch on, the same number on every rank.

        Args:
            start_sample: samples of the epoch that all ranks together have already taken, under any world size.

        Yields:
            dense_features float32 [B, dense columns], sparse_features with int32 values and lengths for all tables in
            the order of the manifest, labels float32 [B].

        Raises:
            UserError: the split has fewer rows than one global batch; an id is outside its table; a part is damaged.
            ValueError: `start_sample` is outside the epoch.
        """
        if not 0 <= start_sample <= self.rows:
            raise ValueError(f"start_sample {start_sample} is outside the epoch of {self.rows} samples")
        if not self.steps_per_epoch:
            raise UserError(
                f"split '{self.split}' has {self.rows} rows, fewer than one step over all ranks takes",
                where=f"batch {self.batch_size} x {self.world_size} ranks",
                fix="make the batch smaller",
            )
        order = windows(
            self._reader.groups,
            seed=self._seed,
            epoch=epoch,
            shuffle=self._shuffle,
            window_groups=self._window_groups,
        )
        stop = start_sample + self.steps_left(start_sample) * self.global_batch
        return self._batches(order, start_sample, stop)

    def eval_batches(self) -> Generator[tuple[Batch, int]]:
        """Every row of the split exactly once over all ranks, the same number of full batches on every rank.

        Yields:
            A batch as in `train_batches`, and how many of its leading rows count: the rest, perhaps all, repeat the
            last row of the split.

        Raises:
            UserError: an id is outside its table, or a part is damaged.
        """
        order = windows(self._reader.groups, seed=0, epoch=0, shuffle=False, window_groups=1)
        steps = -(-self.rows // self.global_batch)
        first = self.rank * self.batch_size
        batches = self._batches(order, 0, steps * self.global_batch)
        try:
            for batch in batches:
                yield batch, min(max(self.rows - first, 0), self.batch_size)
                first += self.global_batch
        finally:
            batches.close()

    def _batches(self, order: Iterator[Window], start: int, stop: int) -> Generator[Batch]:
        # Two stages, so that decoding a window does not hold up the batches of the one before.
        return prefetched(self._cut(prefetched(self._blocks(order, start, stop), depth=1)), depth=self._prefetch)

    def _blocks(self, order: Iterator[Window], start: int, stop: int) -> Generator[Columns]:
        """This rank's rows of each window, in the order of training."""
        for window in order:
            end = window.start + window.rows
            last = stop if end == self.rows else min(end, stop)
            samples = rank_samples(
                window.start, last, origin=start, batch=self.batch_size, rank=self.rank, world_size=self.world_size
            )
            if samples.size:
                # Padding of evaluation lies past the last row.
                yield self._reader.read(window.groups, window.row(np.minimum(samples - window.start, window.rows - 1)))

    def _cut(self, blocks: Generator[Columns]) -> Generator[Batch]:
        """Batches of `batch_size` rows; a batch may span blocks."""
        try:
            pieces: list[Columns] = []
            have = 0
            for block in blocks:
                taken = 0
                while block.rows - taken >= self.batch_size - have:
                    upto = taken + self.batch_size - have
                    yield self._batch([*pieces, block.slice(taken, upto)])
                    pieces, have, taken = [], 0, upto
                if taken < block.rows:
                    pieces.append(block.slice(taken, block.rows))
                    have += block.rows - taken
        finally:
            blocks.close()

    def _batch(self, pieces: list[Columns]) -> Batch:
        columns = pieces[0] if len(pieces) == 1 else Columns.concat(pieces)
        batch = Batch(
            dense_features=torch.from_numpy(columns.dense),
            sparse_features=make_kjt(
                self._keys, [t.lengths for t in columns.tables], [t.values for t in columns.tables], columns.rows
            ),
            labels=torch.from_numpy(columns.labels),
        )
        return self._prepare(batch)


def job_loader(
    job: Job,
    dataset: Dataset,
    split: str,
    *,
    rank: int,
    world_size: int,
    prepare: Callable[[Batch], Batch] | None = None,
) -> Loader:
    """The loader of a split as a job states it; see `Loader`."""
    return Loader(
        dataset,
        split,
        batch_size=job.train.batch_size,
        rank=rank,
        world_size=world_size,
        shuffle=job.data.shuffle,
        seed=job.train.seed,
        window_groups=job.data.window_groups,
        prefetch=job.data.prefetch,
        table_rows=job.model.table_rows,
        prepare=prepare,
    )


def make_kjt(
    keys: Sequence[str], lengths: Sequence[np.ndarray], values: Sequence[np.ndarray], stride: int
) -> KeyedJaggedTensor:
    """A KJT on the CPU from one array of lengths and one of ids per feature.

    A wrong count is found here, with the name of the feature, and not in the kernel of a later step
    (meta-pytorch/torchrec#4638).

    Args:
        lengths: per feature, ids in each bag, integer [stride].
        values: per feature, the ids of all bags end to end, int32 or int64, of one dtype for all features.
        stride: rows of the batch; 0 is allowed.

    Returns:
        int32 lengths, values of the given dtype.

    Raises:
        ValueError: the number of lengths is not the stride, a length is negative, or the lengths do not sum to the
            number of values; or there is not one array of each for every key.
    """
    if not len(keys) == len(lengths) == len(values):
        raise ValueError(f"{len(keys)} keys, {len(lengths)} arrays of lengths, {len(values)} arrays of values")
    for key, length in zip(keys, lengths, strict=True):
        if length.shape != (stride,):
            raise ValueError(f"feature '{key}' has {length.size} lengths for a batch of {stride} rows")
    table = np.concatenate([np.empty(0, np.int32), *lengths], dtype=np.int32, casting="same_kind").reshape(
        len(keys), stride
    )
    if table.size and table.min() < 0:
        key = keys[int(np.argmax(table.min(axis=1) < 0))]
        raise ValueError(f"feature '{key}' has a negative length")
    sums = table.sum(axis=1, dtype=np.int64).tolist()
    for key, total, ids in zip(keys, sums, values, strict=True):
        if total != ids.size:
            raise ValueError(f"feature '{key}' has {ids.size} ids, but its lengths sum to {total}")
    return KeyedJaggedTensor(
        keys=list(keys),
        values=torch.from_numpy(np.concatenate(values) if values else np.empty(0, np.int32)),
        lengths=torch.from_numpy(table.reshape(-1)),
        stride=stride,
        length_per_key=sums,
    )
