"""AUC, NE and log loss of the valid split, over all ranks' scores exactly."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator
from contextlib import closing

import numpy as np
import torch
import torch.distributed as dist
from torchrec.datasets.utils import Batch

from pipelines.job import DivergedError, Metrics
from pipelines.metrics import auc, gather_scores, log_loss, normalized_entropy
from pipelines.run_state import RunState


def evaluate(run: RunState) -> Metrics:
    """Score each row of the valid split once. Weights, optimiser and position stay as they are.

    Returns:
        On rank 0 `eval/auc`, `eval/ne`, `eval/log_loss` and `eval/rows`, without those that are undefined (one class
        only); elsewhere nothing.

    Raises:
        DivergedError: a score is NaN; on all ranks.
    """
    scores = _score(run)
    missing = torch.isnan(scores[0]).sum()
    dist.all_reduce(missing, group=run.groups.exchange)
    if missing:
        raise DivergedError(f"{int(missing):,} of {run.valid.rows:,} scores are NaN at step {run.position.step:,}")
    scored = gather_scores(*scores)
    if scored is None:
        return {}
    logits, labels = scored
    metrics = summarise(labels, logits)
    if "eval/auc" not in metrics:
        run.hooks.say(f"AUC and NE are undefined: all {labels.size:,} rows of the valid split have one label")
    run.hooks.log(run.position.step, run.total_steps, metrics)
    return metrics


def summarise(labels: np.ndarray, logits: np.ndarray) -> Metrics:
    """The metrics of logits [n] against labels [n]; the undefined ones are left out."""
    values = {
        "eval/auc": auc(labels, logits),
        "eval/ne": normalized_entropy(labels, logits),
        "eval/log_loss": log_loss(labels, logits),
        "eval/rows": float(labels.size),
    }
    return {name: value for name, value in values.items() if value is not None}


def _score(run: RunState) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits and labels of this rank's rows, float32 [n] each."""
    counts: deque[int] = deque()
    logits, labels = [], []

    def batches() -> Generator[Batch]:
        with closing(run.valid.eval_batches()) as source:
            for batch, rows in source:
                counts.append(rows)
                yield batch

    run.model.eval()
    try:
        with torch.no_grad(), closing(batches()) as feed:
            while True:
                _, batch_logits, batch_labels = run.pipeline.progress(feed)
                rows = counts.popleft()
                logits.append(batch_logits[:rows])
                labels.append(batch_labels[:rows])
    except StopIteration:
        empty = torch.empty(0, device=run.device)
        return torch.cat([empty, *logits]), torch.cat([empty, *labels])
    finally:
        run.model.train()
