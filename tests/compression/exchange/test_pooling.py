"""Pooling and its gradient: bit for bit those of sums in order and of FBGEMM, and nearly those of torch."""

import numpy as np
import pytest
import torch
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation, PoolingMode
from fbgemm_gpu.split_table_batched_embeddings_ops_training import ComputeDevice, SplitTableBatchedEmbeddingBagsCodegen
from hypothesis import given, settings
from hypothesis import strategies as st

from compression.exchange.pooling import gather, gather_backward, pool, pool_backward

F32 = np.float32


class Batch:
    """Random shards of some features, bags of them, and rows; `weights` is empty if they have none.

    The columns of `out` are in an order of their own, with unused ones between them.
    """

    def __init__(self, seed, batch, longest, weighted, dims):
        rng = np.random.default_rng(seed)
        self.batch, self.dims = batch, np.array(dims, np.int64)
        self.shards = np.cumsum([0, *rng.integers(1, 4, len(dims))])
        self.of = np.repeat(np.arange(len(dims)), np.diff(self.shards))
        self.mean = rng.random(len(dims)) < 0.5
        lengths = rng.integers(min(longest, 1), longest + 1, self.of.size * batch)
        if longest > 1:
            lengths[rng.random(lengths.size) < 0.2] = 0
        self.offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        n, counts = int(self.offsets[-1]), rng.integers(1, 20, len(dims))
        self.bases = np.cumsum([0, *(counts * self.dims)])[:-1].copy()
        self.rows = rng.standard_normal(int((counts * self.dims).sum())).astype(F32)
        self.inverse = np.empty(n, np.int32)
        for feature, shard in enumerate(self.of):
            part = self.inverse[self.offsets[feature * batch] : self.offsets[(feature + 1) * batch]]
            part[:] = rng.integers(0, counts[shard], part.size)
        self.weights = rng.standard_normal(n if weighted else 0).astype(F32)
        self.columns, self.width = np.zeros(self.of.size, np.int64), 1
        for feature in rng.permutation(self.of.size):
            self.columns[feature] = self.width
            self.width += int(self.dims[self.of[feature]]) + int(rng.integers(0, 2))
        self.grad = rng.standard_normal((batch, self.width)).astype(F32)

    def bags(self):
        """(feature's shard, bag in the batch, positions, columns of out) of each bag."""
        for feature, shard in enumerate(self.of):
            columns = slice(self.columns[feature], self.columns[feature] + self.dims[shard])
            for bag in range(self.batch):
                at = feature * self.batch + bag
                yield shard, bag, range(self.offsets[at], self.offsets[at + 1]), columns

    def row(self, shard, position):
        start = self.bases[shard] + self.inverse[position] * self.dims[shard]
        return slice(start, start + self.dims[shard])

    def weight(self, position):
        return self.weights[position] if self.weights.size else F32(1)

    def pool(self):
        out = np.full((self.batch, self.width), np.nan, F32)
        lists = self.bases, self.dims, self.shards, self.columns, self.mean, self.offsets
        pool(self.rows, *lists, self.batch, self.inverse, self.weights, out)
        return out

    def pool_backward(self):
        rows_grad = np.full(self.rows.size, np.nan, F32)
        lists = self.bases, self.dims, self.shards, self.columns, self.mean, self.offsets
        pool_backward(self.grad, *lists, self.batch, self.inverse, self.weights, rows_grad)
        return rows_grad


def fused(a, b, c):
    """a * b + c of float32 in one rounding: the product is exact in float64, and the sum in longdouble or nearly so."""
    return (np.longdouble(a) * b.astype(np.longdouble) + c).astype(F32)


def slow_pool(case):
    out = np.full((case.batch, case.width), np.nan, F32)
    for shard, bag, positions, columns in case.bags():
        total = np.zeros(case.dims[shard], F32)
        for position in positions:
            total = fused(case.weight(position), case.rows[case.row(shard, position)], total)
        out[bag, columns] = total * (F32(1) / F32(len(positions))) if case.mean[shard] and positions else total
    return out


def slow_backward(case):
    rows_grad = np.zeros(case.rows.size, F32)
    for shard, bag, positions, columns in case.bags():
        share = F32(1) / F32(len(positions)) if case.mean[shard] and positions else F32(1)
        for position in positions:
            at = case.row(shard, position)
            rows_grad[at] = fused(case.weight(position) * share, case.grad[bag, columns], rows_grad[at])
    return rows_grad


cases = st.builds(
    Batch,
    st.integers(0, 2**32 - 1),
    st.sampled_from([0, 1, 2, 9]),
    st.sampled_from([0, 1, 2, 7]),
    st.booleans(),
    st.lists(st.sampled_from([1, 3, 4, 7, 8, 15, 16, 33, 64, 128]), max_size=4),
)


@given(cases)
@settings(deadline=None)
def test_sums_are_made_in_the_order_of_positions(case):
    assert case.pool().tobytes() == slow_pool(case).tobytes()
    assert case.pool_backward().tobytes() == slow_backward(case).tobytes()


def torch_pool(case, rows):
    """Differentiable in rows; a mean of weighted bags is no mode of torch."""
    out = torch.zeros(case.batch, case.width) + 0 * rows.sum()
    for shard, bag, positions, columns in case.bags():
        if positions:
            weights = torch.tensor([case.weight(position) for position in positions])
            taken = torch.stack([rows[case.row(shard, position)] for position in positions])
            out[bag, columns] = (weights[:, None] * taken).sum(0) / (len(positions) if case.mean[shard] else 1)
    return out


@given(cases)
@settings(deadline=None, max_examples=30)
def test_the_gradient_is_that_of_the_forward_pass(case):
    rows = torch.tensor(case.rows, requires_grad=True)
    out = torch_pool(case, rows)
    np.testing.assert_allclose(np.nan_to_num(case.pool()), out.detach(), rtol=1e-5, atol=1e-5)
    (out * torch.from_numpy(case.grad)).sum().backward()
    np.testing.assert_allclose(case.pool_backward(), rows.grad, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("mean", "weighted"), [(False, False), (False, True), (True, False), (True, True)])
@pytest.mark.parametrize("longest", [1, 6])
@pytest.mark.parametrize("dim", [4, 16, 20, 128])
def test_a_table_as_fbgemm_pools_it(mean, weighted, longest, dim):
    case = Batch(3, 50, longest, weighted, [dim])
    case.mean[:] = mean
    case.rows[::7] = -0.0
    fbgemm = SplitTableBatchedEmbeddingBagsCodegen(
        [(case.rows.size // dim, dim, EmbeddingLocation.HOST, ComputeDevice.CPU)],
        feature_table_map=[0] * case.of.size,
        optimizer=EmbOptimType.EXACT_SGD,
        learning_rate=1.0,
        pooling_mode=PoolingMode.MEAN if mean else PoolingMode.SUM,
    )
    rows, weights = fbgemm.split_embedding_weights()[0], torch.from_numpy(case.weights) if weighted else None
    positions = torch.from_numpy(case.inverse.astype(np.int64)), torch.from_numpy(case.offsets)
    rows.copy_(torch.from_numpy(case.rows.reshape(-1, dim)))
    pooled = fbgemm(*positions, per_sample_weights=weights)
    out = case.pool()
    assert pooled.detach().numpy().tobytes() == np.hstack([out[:, c : c + dim] for c in case.columns]).tobytes()
    if mean and weighted:
        return  # FBGEMM's gradient lacks the division by the length.
    rows.zero_()  # which one step of SGD at a rate of 1 makes the gradient, but for its sign
    grad = torch.from_numpy(np.hstack([case.grad[:, c : c + dim] for c in case.columns]))
    fbgemm(*positions, per_sample_weights=weights).backward(grad)
    assert np.array_equal(-rows.numpy().reshape(-1), case.pool_backward())


def test_a_bag_of_one_is_its_row():
    case = Batch(0, 50, 1, False, [16, 20])
    case.rows[::3] = np.array([np.nan, np.inf, 1e-42, -0.0], F32)[np.arange(case.rows[::3].size) % 4]
    out = case.pool()
    for shard, bag, (position,), columns in case.bags():
        # A sum begins at 0, so it is never -0.0.
        assert out[bag, columns].tobytes() == (case.rows[case.row(shard, position)] + F32(0)).tobytes()


@given(cases, st.sampled_from([1, 8, 20]))
@settings(deadline=None, max_examples=50)
def test_rows_of_sequences(case, dim):
    case = Batch(case.offsets.size, case.batch, 3, False, [dim] * case.dims.size)
    case.rows[::5] = -0.0
    bags = case.shards, case.offsets, case.batch, case.inverse
    out = np.full((case.inverse.size, dim), np.nan, F32)
    gather(case.rows, case.bases, dim, *bags, out)
    grad = np.random.default_rng(1).standard_normal(out.shape).astype(F32)
    rows_grad = np.full(case.rows.size, np.nan, F32)
    gather_backward(grad, case.bases, dim, *bags, rows_grad)
    expected, sums = np.empty_like(out), np.zeros_like(case.rows)
    for shard, _, positions, _ in case.bags():
        for position in positions:
            expected[position] = case.rows[case.row(shard, position)]
            sums[case.row(shard, position)] += grad[position]
    assert out.tobytes() == expected.tobytes()
    assert rows_grad.tobytes() == sums.tobytes()


def test_what_does_not_fit_is_refused():
    case = Batch(1, 3, 2, True, [4, 8])
    names = ["rows", "bases", "dims", "shards", "columns", "mean", "offsets", "batch", "inverse", "weights"]
    good = [getattr(case, name) for name in names]
    out = np.empty((3, case.width), F32)
    pool(*good, out)
    for place, name in enumerate(names):
        if name == "batch":
            wrong = [case.batch + 1, -1]
        else:
            wrong = [np.stack([good[place]] * 2, 1)[:, 0], *([good[place][:-1]] if name != "rows" else [])]
            with pytest.raises(TypeError, match=f"{name} is "):
                pool(*good[:place], good[place].astype(np.float16), *good[place + 1 :], out)
        for other in wrong:
            with pytest.raises(ValueError):
                pool(*good[:place], other, *good[place + 1 :], out)
    for bad in (out[:, ::2], out[:2], out[0]):
        with pytest.raises(ValueError):
            pool_backward(bad, *good[1:], case.rows)
    for bad in (out[:2], out[:, ::2], out[0]):
        with pytest.raises(ValueError):
            pool(*good, bad)
    with pytest.raises(ValueError):
        gather(case.rows, case.bases, 4, case.shards, case.offsets, 3, case.inverse, np.empty((1, 4), F32))
