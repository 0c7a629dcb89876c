"""Metrics over all ranks equal the single-process value."""

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from sklearn.metrics import log_loss as sklearn_log_loss
from sklearn.metrics import roc_auc_score

from pipelines.errors import UserError
from pipelines.metrics import auc, gather_scores, log_loss, normalized_entropy
from tests.ranks import START


def sample(n=5000, seed=0):
    rng = np.random.default_rng(seed)
    logits = rng.standard_normal(n).astype(np.float32)
    return (rng.random(n) < 1 / (1 + np.exp(-logits))).astype(np.uint8), logits


def test_auc_equals_sklearn_also_with_ties():
    labels, logits = sample()
    assert auc(labels, logits) == pytest.approx(roc_auc_score(labels, logits), abs=1e-12)
    tied = np.round(logits * 2)
    assert auc(labels, tied) == pytest.approx(roc_auc_score(labels, tied), abs=1e-12)
    assert auc(labels, np.zeros_like(logits)) == 0.5


def test_auc_in_chunks_is_the_same(monkeypatch):
    labels, logits = sample()
    whole = auc(labels, logits), log_loss(labels, logits)
    monkeypatch.setattr("pipelines.metrics.quality._CHUNK", 7)
    assert (auc(labels, logits), log_loss(labels, logits)) == (whole[0], pytest.approx(whole[1], abs=1e-12))


def test_log_loss_equals_sklearn_and_keeps_sure_mistakes():
    labels, logits = sample()
    expected = sklearn_log_loss(labels, 1 / (1 + np.exp(-logits.astype(np.float64))))
    assert log_loss(labels, logits) == pytest.approx(expected, abs=1e-12)
    assert log_loss(np.array([0, 1]), np.array([100.0, 100.0], np.float32)) == 50.0
    assert log_loss(np.array([1, 0]), np.array([np.inf, -np.inf])) == 0.0


def test_normalized_entropy_of_the_base_rate_is_one():
    labels, logits = sample()
    p = labels.mean()
    base = np.full(labels.size, np.log(p / (1 - p)), np.float64)
    assert normalized_entropy(labels, base) == pytest.approx(1.0, abs=1e-12)
    assert normalized_entropy(labels, logits) < 1


@pytest.mark.parametrize("labels", [[], [0, 0], [1, 1]])
def test_one_class_is_undefined_and_not_one_half(labels):
    labels, scores = np.array(labels, np.uint8), np.zeros(len(labels), np.float32)
    assert auc(labels, scores) is None
    assert normalized_entropy(labels, scores) is None


@pytest.mark.parametrize("metric", [auc, log_loss, normalized_entropy])
def test_nan_scores_are_an_error(metric):
    with pytest.raises(UserError, match="1 of 2 scores are NaN"):
        metric(np.array([0, 1]), np.array([0.5, np.nan], np.float32))


def test_lengths_must_agree():
    with pytest.raises(ValueError, match="one length"):
        auc(np.zeros(2), np.zeros(3))
    with pytest.raises(ValueError, match="one length"):
        gather_scores(torch.zeros(2), torch.zeros(3))


def test_gather_without_a_process_group():
    labels, logits = sample(10)
    scores, gathered = gather_scores(torch.from_numpy(logits), torch.from_numpy(labels).float())
    assert np.array_equal(scores, logits) and np.array_equal(gathered, labels)
    assert scores.dtype == np.float32 and gathered.dtype == np.uint8


def _gather(rank, bounds, folder):
    world_size = len(bounds) - 1
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=world_size)
    labels, logits = sorted_sample()
    mine = slice(bounds[rank], bounds[rank + 1])
    result = gather_scores(torch.from_numpy(logits[mine]), torch.from_numpy(labels[mine]).float())
    assert (result is None) == (rank != 0)
    if result is not None:
        np.savez(f"{folder}/result.npz", scores=result[0], labels=result[1])
    group = dist.new_group([world_size - 1])
    if rank == world_size - 1:
        assert gather_scores(torch.ones(3), torch.ones(3), group)[0].size == 3
    dist.barrier()
    dist.destroy_process_group()


def sorted_sample():
    """All negatives first, so that a rank's own AUC is undefined or misleading."""
    labels, logits = sample(1001)
    order = np.argsort(labels, kind="stable")
    return labels[order], logits[order]


# facebookresearch/dlrm#324: AUC per rank, then averaged.
@pytest.mark.parametrize("bounds", [[0, 720, 1001], [0, 0, 700, 1001], [0, 1001, 1001]])
def test_metrics_over_ranks_equal_the_single_process_value(bounds, tmp_path):
    mp.start_processes(_gather, (bounds, str(tmp_path)), nprocs=len(bounds) - 1, start_method=START)
    labels, logits = sorted_sample()
    result = np.load(tmp_path / "result.npz")
    assert np.array_equal(result["scores"], logits) and np.array_equal(result["labels"], labels)
    assert auc(result["labels"], result["scores"]) == pytest.approx(roc_auc_score(labels, logits), abs=1e-12)
