"""Dense gradients by the thin exchange: means within the bound, the same bits on all ranks, whatever DDP's buckets."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from compression import Codec, Relative
from compression.exchange import DenseExchange, dense_hook
from compression.exchange.dense_slices import Slices, from_values, to_values
from tests.ranks import run_ranks

pytestmark = pytest.mark.usefixtures("compiled")
SIZES = [(64, 32), (32,), (1, 7), (300, 5), (3,)]


def world() -> dist.ProcessGroup:
    assert dist.group.WORLD is not None
    return dist.group.WORLD


def averages(bound: float) -> dict[str, Any]:
    """Of gradients that each rank can make for all."""
    ranks = dist.get_world_size()
    state = DenseExchange(world(), [nn.Parameter(torch.zeros(size)) for size in SIZES], bound)
    of_ranks = [np.random.default_rng(rank).standard_normal(3590).astype(np.float32) for rank in range(ranks)]
    total = of_ranks[0].copy()
    for one in of_ranks[1:]:
        total += one
    found = state.average(of_ranks[dist.get_rank()])
    error = np.abs(found.astype(np.float64) - total / np.float32(ranks)).max()
    spread = max(np.ptp(one) for one in of_ranks)
    return {"error": float(error), "spread": float(spread), "bits": hashlib.sha256(found.tobytes()).hexdigest()}


def trained(hook: bool, bucket_mb: float, bound: float = 0.0) -> dict[str, Any]:
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 1))
    model = DistributedDataParallel(layers, bucket_cap_mb=bucket_mb)
    if hook:
        model.register_comm_hook(DenseExchange(world(), list(layers.parameters()), bound), dense_hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(1 + dist.get_rank())
    for _ in range(10):
        optimizer.zero_grad()
        (model(torch.randn(8, 16)) - 1).square().mean().backward()
        optimizer.step()
    flat = torch.cat([p.detach().reshape(-1) for p in layers.parameters()])
    return {"weights": flat.tolist(), "bits": hashlib.sha256(flat.numpy().tobytes()).hexdigest()}


def on_a_rank() -> dict[str, Any]:
    return {
        "exact": averages(0.0),
        "lossy": averages(0.01),
        "plain": trained(False, 25),
        "hook": trained(True, 25),
        "small buckets": trained(True, 0.001),
        "bounded": trained(True, 25, 0.01),
    }


@pytest.mark.parametrize("ranks", [1, 3])
def test_means_and_training(ranks: int) -> None:
    found = run_ranks(on_a_rank, ranks)
    for rank in found:
        assert {kind: of["bits"] for kind, of in rank.items()} == {kind: of["bits"] for kind, of in found[0].items()}
        assert rank["exact"]["error"] == 0
        # Each of ranks - 1 slices is within a bound, and so is the mean, which is sent once more.
        assert rank["lossy"]["error"] <= 0.01 * rank["lossy"]["spread"] * 2
        assert rank["hook"]["bits"] == rank["small buckets"]["bits"], "buckets do not matter"
        np.testing.assert_allclose(rank["hook"]["weights"], rank["plain"]["weights"], rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(rank["bounded"]["weights"], rank["plain"]["weights"], atol=0.02)
    assert ranks == 1 or found[0]["bounded"]["bits"] != found[0]["hook"]["bits"]


def test_weights_travel_as_a_table_with_a_row_an_input() -> None:
    """Gradients that are an outer product have one size a row, and take fewer bytes than value after value."""
    rng = np.random.default_rng(0)
    inputs = np.exp(rng.normal(0, 2, 367)).astype(np.float32)
    gradient = torch.from_numpy(rng.standard_normal((128, 367)).astype(np.float32) * inputs)
    codec = Codec(link=12.5e6, exact=False)
    turned = to_values([gradient])
    payloads = [
        codec.encode([np.ascontiguousarray(values)], Relative(0.01), "huffman").size
        for values in (turned.reshape(367, 128), gradient.numpy().reshape(-1, 1))
    ]
    assert payloads[0] < 0.8 * payloads[1]
    back = torch.empty_like(gradient)
    from_values(turned, np.array([0, turned.size]), [back])
    assert torch.equal(back, gradient)


@pytest.mark.parametrize("ranks", [1, 2, 3, 7])
def test_slices_hold_every_value_once_and_are_about_equal(ranks: int) -> None:
    slices = Slices([nn.Parameter(torch.zeros(size)) for size in SIZES], ranks)
    widest = max(size[0] for size in SIZES if len(size) > 1)
    assert slices.cuts[0] == 0 and slices.cuts[-1] == slices.ends[-1]
    assert np.ptp(np.diff(slices.cuts)) <= 2 * widest
    for rank, rows in enumerate(slices.rows):
        dims = slices.dims[slices.firsts[rank] : slices.firsts[rank + 1]]
        assert (rows * dims).sum() == slices.cuts[rank + 1] - slices.cuts[rank]
