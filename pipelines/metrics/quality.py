"""Exact AUC and normalised entropy over the scores of all ranks.

Scores are gathered, never averaged: the mean of per-rank or per-batch AUCs is another number
(facebookresearch/dlrm#324). Scores are logits: float32 probabilities saturate at 1 and lose the loss of sure mistakes.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
import torch.distributed as dist

from pipelines.errors import UserError

_CHUNK = 1 << 22
"""Scores handled at a time, so that float64 temporaries stay small next to the scores."""


def gather_scores(
    scores: torch.Tensor, labels: torch.Tensor, group: dist.ProcessGroup | None = None
) -> tuple[np.ndarray, np.ndarray] | None:
    """All ranks' scores and labels, in rank order, on the first rank of the group.

    Args:
        scores: logits, floating [n]; n may differ between ranks and be 0.
        labels: 0 or 1, any dtype [n].
        group: the ranks that hold scores, all of which must call this; None means all ranks, or this process alone
            where torch.distributed is not initialised.

    Returns:
        (float32 [N], uint8 [N]) on the group's first rank, where N is the sum of n; None on the others.

    Raises:
        ValueError: scores and labels of this rank are not 1-d or differ in length.
    """
    if scores.ndim != 1 or scores.shape != labels.shape:
        raise ValueError(f"scores {tuple(scores.shape)} and labels {tuple(labels.shape)} must be 1-d and of one length")
    scores, labels = scores.detach().to(torch.float32), labels.detach().to(torch.uint8)
    if not dist.is_initialized() or dist.get_world_size(group) == 1:
        return scores.cpu().numpy(), labels.cpu().numpy()
    device = torch.device("cuda") if dist.get_backend(group) == "nccl" else torch.device("cpu")
    ranks = dist.get_process_group_ranks(group or dist.group.WORLD)
    counts = [torch.zeros(1, dtype=torch.int64, device=device) for _ in ranks]
    dist.all_gather(counts, torch.tensor([scores.numel()], device=device), group=group)
    ns = [int(c) for c in counts]
    gathered = [_collect(t.contiguous(), ns, ranks, device, group) for t in (scores, labels)]
    return None if gathered[0] is None or gathered[1] is None else (gathered[0], gathered[1])


def _collect(
    mine: torch.Tensor, ns: list[int], ranks: list[int], device: torch.device, group: dist.ProcessGroup | None
) -> np.ndarray | None:
    """Point to point, so that the first rank holds the sum of n values and not ranks x the largest n."""
    if dist.get_rank() != ranks[0]:
        if mine.numel():
            dist.send(mine.to(device), ranks[0], group=group)
        return None
    out = torch.empty(sum(ns), dtype=mine.dtype)
    out[: ns[0]] = mine
    start = ns[0]
    for rank, n in zip(ranks[1:], ns[1:], strict=True):
        if n:
            part = out[start : start + n] if device.type == "cpu" else torch.empty(n, dtype=mine.dtype, device=device)
            dist.recv(part, rank, group=group)
            if device.type != "cpu":
                out[start : start + n] = part
        start += n
    return out.numpy()


def auc(labels: np.ndarray, scores: np.ndarray) -> float | None:
    """Exact area under the ROC curve; ties count one half.

    Sorts the scores of each class apart and counts pairs in integers: at float32 this needs about twice the bytes of
    the scores, where `sklearn.metrics.roc_auc_score` (equal to 1e-12) needs about ten times as many.

    Args:
        labels: 0 or 1 [n].
        scores: any monotone score, logit or probability, floating [n].

    Returns:
        None where it is undefined: no row, or rows of one class only.

    Raises:
        UserError: a score is NaN.
        ValueError: lengths differ.
    """
    _check(labels, scores)
    positive = labels.astype(bool)
    pos, neg = np.sort(scores[positive]), np.sort(scores[~positive])
    if not pos.size or not neg.size:
        return None
    twice_wins = 0
    for start in range(0, pos.size, _CHUNK):
        part = pos[start : start + _CHUNK]
        twice_wins += int(np.searchsorted(neg, part, "left").sum()) + int(np.searchsorted(neg, part, "right").sum())
    return twice_wins / (2 * pos.size * neg.size)


def log_loss(labels: np.ndarray, logits: np.ndarray) -> float | None:
    """Mean cross-entropy in nats, in float64, unclipped.

    Args:
        labels: 0 or 1 [n].
        logits: scores before the sigmoid, floating [n].

    Returns:
        None for no row.

    Raises:
        UserError: a logit is NaN.
        ValueError: lengths differ.
    """
    _check(labels, logits)
    if not labels.size:
        return None
    total = 0.0
    for chunk in _chunks(labels.size):
        z = logits[chunk].astype(np.float64)
        total += float(np.logaddexp(0.0, np.where(labels[chunk] > 0, -z, z)).sum())
    return total / labels.size


def normalized_entropy(labels: np.ndarray, logits: np.ndarray) -> float | None:
    """Log loss over the entropy of the base rate (He et al. 2014, Practical Lessons from Predicting Clicks on Ads).

    Below 1 is better than always answering the base rate. Arguments and errors as in `log_loss`.

    Returns:
        None where it is undefined: no row, or rows of one class only.
    """
    loss = log_loss(labels, logits)
    positives = np.count_nonzero(labels)
    if loss is None or positives in (0, labels.size):
        return None
    p = positives / labels.size
    return float(loss / -(p * np.log(p) + (1 - p) * np.log1p(-p)))


def _check(labels: np.ndarray, scores: np.ndarray) -> None:
    if labels.ndim != 1 or labels.shape != scores.shape:
        raise ValueError(f"labels {labels.shape} and scores {scores.shape} must be 1-d and of one length")
    bad = sum(int(np.isnan(scores[c]).sum()) for c in _chunks(scores.size))
    if bad:
        raise UserError(
            f"{bad} of {scores.size} scores are NaN",
            where="evaluation",
            fix="the model diverged: lower the learning rate",
        )


def _chunks(n: int) -> Iterator[slice]:
    return (slice(start, start + _CHUNK) for start in range(0, n, _CHUNK))
