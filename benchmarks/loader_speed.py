"""How many rows a second the loader delivers on one rank when nothing waits for the model."""

from __future__ import annotations

import time

from pipelines.dataset import Dataset
from pipelines.loader import Loader

WARM_UP_S = 1.0


def measure(
    dataset: Dataset, split: str = "train", batch_size: int = 2048, world_size: int = 1, seconds: float = 5.0
) -> dict[str, float | int | str]:
    """Read shuffled train batches of rank 0, epoch after epoch, for a while; a warm-up of a second is not counted.

    Args:
        batch_size: rows per rank and step.
        world_size: ranks that share the order of rows; this process reads as the first of them.

    Returns:
        `rows_per_s` this rank delivers; `rows_per_cpu_s` over the CPU time of all threads of the process; `seconds`
        and `rows` measured, and the arguments.

    Raises:
        UserError: the data set is damaged, or the split has fewer rows than a step takes.
    """
    loader = Loader(dataset, split, batch_size=batch_size, rank=0, world_size=world_size, shuffle=True, seed=0)
    warm = time.perf_counter() + WARM_UP_S
    start = cpu = None
    rows, epoch = 0, 0
    while True:
        batches = loader.train_batches(epoch)
        for _ in batches:
            now = time.perf_counter()
            if start is None or cpu is None:
                if now >= warm:
                    start, cpu = now, time.process_time()
                continue
            rows += batch_size
            if now - start >= seconds:
                used = time.process_time() - cpu
                batches.close()
                return {
                    "split": split,
                    "batch_size": batch_size,
                    "world_size": world_size,
                    "rows": rows,
                    "seconds": now - start,
                    "rows_per_s": rows / (now - start),
                    "rows_per_cpu_s": rows / used,
                }
        epoch += 1
