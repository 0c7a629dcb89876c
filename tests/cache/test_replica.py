"""The replica's numbers: torch's pooling, FBGEMM's optimisers."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation
from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
    ComputeDevice,
    SplitTableBatchedEmbeddingBagsCodegen,
)

from cache.optim import Name
from cache.replica import Replica
from cache.split import HotLookups, part
from cache.tables import HotSet, HotTable, Slots

B = 6


def tables(mean: bool = False) -> list[HotTable]:
    """Wholly hot, so that the replica alone gives the pooled rows; two features share the second."""
    return [HotTable("a", 7, 4, 7, ("fa",), mean), HotTable("b", 5, 12, 5, ("fb", "fc"), mean)]


def batch_of(slots: Slots, seed: int, weighted: bool = False) -> tuple[HotLookups, np.ndarray, np.ndarray, np.ndarray]:
    """Lookups with empty bags and duplicates; ids, lengths and weights."""
    draw = np.random.default_rng(seed)
    lengths = draw.integers(0, 4, 3 * B).astype(np.int32)
    rows = [7, 5, 5]
    ids = np.concatenate([draw.integers(0, rows[f], lengths[f * B : (f + 1) * B].sum()) for f in range(3)])
    weights = draw.normal(size=ids.size if weighted else 0).astype(np.float32)
    return part(HotSet.first_rows(slots), ids, lengths, B, weights)[1], ids, lengths, weights


def filled(replica: Replica) -> Replica:
    replica.rows[:] = np.random.default_rng(1).normal(size=replica.rows.size)
    return replica


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("mean", [False, True])
def test_pooling_and_its_gradient_are_torchs(mean: bool, weighted: bool) -> None:
    slots = Slots(tables(mean))
    replica = filled(Replica(slots, "sgd"))
    lookups, ids, lengths, weights = batch_of(slots, 2, weighted)
    columns = np.array([12, 0, 16])
    grad = np.random.default_rng(3).normal(size=(B, 28)).astype(np.float32)
    found = replica.look_up(lookups, columns, 28)
    sums = replica.gradients(lookups, grad, columns)

    whole = [torch.from_numpy(replica.read(t)["weight"].copy()).requires_grad_() for t in range(2)]
    expected = torch.zeros(B, 28)
    ends = np.cumsum([0, *lengths])
    for feature, (table, column) in enumerate(zip([0, 1, 1], columns, strict=True)):
        for sample in range(B):
            first, last = ends[feature * B + sample], ends[feature * B + sample + 1]
            if first == last:
                continue
            rows = whole[table][ids[first:last]]
            if weighted:
                rows = rows * torch.from_numpy(weights[first:last])[:, None]
            pooled = rows.sum(0) / (last - first if mean else 1)
            expected = expected + torch.nn.functional.pad(
                pooled[None], (column, 28 - column - rows.size(1), sample, B - 1 - sample)
            )
    expected.backward(torch.from_numpy(grad))
    np.testing.assert_allclose(found, expected.detach().numpy(), rtol=1e-6, atol=1e-6)
    gradients = np.zeros(slots.values, np.float32)
    at = 0
    for slot in lookups.touched:
        base, dim = slots.bases[slot], slots.dims[slot]
        gradients[base : base + dim] = sums[at : at + dim]
        at += dim
    true = np.concatenate([w.grad.numpy().ravel() if w.grad is not None else np.zeros(w.numel()) for w in whole])
    np.testing.assert_allclose(gradients, true, rtol=1e-5, atol=1e-6)


def test_a_bag_of_one_is_its_row_bit_for_bit() -> None:
    slots = Slots([HotTable("a", 3, 4, 3, ("fa",))])
    replica = filled(Replica(slots, "sgd"))
    lookups = part(HotSet.first_rows(slots), np.array([2, 0]), np.ones(2, np.int32), 2)[1]
    found = replica.look_up(lookups, np.array([0]), 4)
    assert (found == replica.read(0)["weight"][[2, 0]]).all()


@pytest.mark.parametrize(("name", "kind"), [("sgd", "EXACT_SGD"), ("rowwise_adagrad", "EXACT_ROWWISE_ADAGRAD")])
def test_updates_are_fbgemms(name: Name, kind: str) -> None:
    """PC-44: duplicates are merged, then applied once."""
    slots = Slots(tables())
    replica = filled(Replica(slots, name, **({} if name == "sgd" else {"eps": 1e-8})))
    peer = SplitTableBatchedEmbeddingBagsCodegen(
        [(7, 4, EmbeddingLocation.HOST, ComputeDevice.CPU), (5, 12, EmbeddingLocation.HOST, ComputeDevice.CPU)],
        feature_table_map=[0, 1, 1],
        optimizer=getattr(EmbOptimType, kind),
        learning_rate=0.1,
        eps=1e-8,
    )
    for t, weights in enumerate(peer.split_embedding_weights()):
        weights.copy_(torch.from_numpy(replica.read(t)["weight"]))
    columns = np.array([0, 4, 16])
    for step in range(20):
        lookups, ids, lengths, _ = batch_of(slots, step)
        offsets = torch.from_numpy(np.cumsum([0, *lengths]))
        grad = np.random.default_rng(100 + step).normal(size=(B, 28)).astype(np.float32)
        out = peer(torch.from_numpy(ids), offsets)
        np.testing.assert_allclose(replica.look_up(lookups, columns, 28), out.detach().numpy(), rtol=1e-5, atol=1e-6)
        out.backward(torch.from_numpy(grad))
        replica.update(lookups.touched, replica.gradients(lookups, grad, columns), 0.1)
    for t in range(2):
        mine = replica.read(t)
        np.testing.assert_allclose(mine["weight"], peer.split_embedding_weights()[t].numpy(), rtol=1e-6, atol=1e-6)
        if name != "sgd":
            moments = peer.split_optimizer_states()[t][0].numpy()
            np.testing.assert_allclose(mine["momentum1"], moments, rtol=1e-6)


def test_adam_is_that_of_the_paper_on_touched_rows() -> None:
    """FBGEMM has no kernel of it on CPU: its formula, written out in float64."""
    slots = Slots([HotTable("a", 7, 4, 7, ("fa",))])
    replica = filled(Replica(slots, "adam", eps=1e-8))
    rows = replica.read(0)["weight"].astype(np.float64)
    first, second = np.zeros((7, 4)), np.zeros((7, 4))
    draw = np.random.default_rng(5)
    for step in range(1, 40):
        some = np.flatnonzero(draw.random(7) < 0.5)
        grad = draw.normal(size=(some.size, 4)).astype(np.float32)
        replica.update(some, grad.ravel(), 0.01)
        first[some] = 0.9 * first[some] + 0.1 * grad
        second[some] = 0.999 * second[some] + 0.001 * grad.astype(np.float64) ** 2
        mended = first[some] / (1 - 0.9**step), second[some] / (1 - 0.999**step)
        rows[some] -= 0.01 * mended[0] / (np.sqrt(mended[1]) + 1e-8)
    np.testing.assert_allclose(replica.read(0)["weight"], rows, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(replica.read(0)["momentum2"], second, rtol=1e-4)


def test_an_unknown_optimiser_is_refused() -> None:
    with pytest.raises(ValueError, match="no optimiser 'lamb'"):
        Replica(Slots(tables()), "lamb")  # type: ignore[arg-type]
