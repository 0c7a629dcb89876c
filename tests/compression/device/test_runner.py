"""The stand-in of a GPU sees what kernels must not do."""

from pathlib import Path

import numpy as np
import pytest

from tests.cuda_on_cpu.device import CpuDevice, KernelError

KERNELS = """
#include "common.cuh"
extern "C" __global__ void copy(const u32 *from, u32 *to, i64 n) {
    i64 i = (i64)blockIdx.x * THREADS + threadIdx.x;
    if (i < n) to[i] = from[i];
}
extern "C" __global__ void sum(const u32 *from, u32 *to) {
    __shared__ BlockScan scan;
    u32 all, before = block_scan(scan, from[threadIdx.x], all);
    to[threadIdx.x] = before;
    if (threadIdx.x == 0) to[THREADS] = all;
}
extern "C" __global__ void half_at_the_barrier() {
    if (threadIdx.x < 100) __syncthreads();
}
extern "C" __global__ void half_a_warp() {
    if (threadIdx.x % 2) __ballot_sync(ALL, 1);
}
extern "C" __global__ void racing(u32 *to) {
    __shared__ u32 last;
    last = threadIdx.x;  // all write it, and who is the last is not said
    __syncthreads();
    to[threadIdx.x] = last;
}
extern "C" __global__ void missing_barrier(u32 *to) {
    __shared__ u32 of_warp[THREADS / 32];
    u32 warp = threadIdx.x / 32, sum = 0;
    of_warp[warp] = 1;
    __syncthreads();
    for (u32 w = 0; w < THREADS / 32; w++) sum += of_warp[w];
    __syncwarp();  // but other warps may not have read it yet
    of_warp[warp] = 2;
    to[threadIdx.x] = sum;
}
extern "C" __global__ void beyond_shared(u32 *to) {
    __shared__ u32 some[4];
    some[threadIdx.x % 5] = 1;
    to[0] = some[0];
}
extern "C" __global__ void not_written(u32 *to) {
    __shared__ u32 some[4];
    to[0] = some[1];
}
extern "C" __global__ void shift(u32 *to, i64 by) { to[0] = 1u << by; }
extern "C" __global__ void warps(u32 *to) {
    u32 lane = lane_id();
    to[threadIdx.x] = warp_scan(lane) + warp_sum(1) + __shfl_sync(ALL, lane, 3) + __popc(__ballot_sync(ALL, lane & 1));
}
"""


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("kernels") / "trial.cu"
    file.write_text(KERNELS)
    return file


@pytest.fixture(params=[0, 3])
def device(source, request):
    found = CpuDevice(request.param, [source])
    yield found
    found.close()


def test_blocks_barriers_and_warps(device):
    values = np.arange(1000, dtype=np.uint32)
    given, out = device.put(values), device.put(np.zeros_like(values))
    device.launch("copy", (4, 1), (given.address, out.address, 1000))
    assert np.array_equal(device.get(out, values), values)
    sums = device.put(np.zeros(257, np.uint32))
    device.launch("sum", (1, 1), (given.address, sums.address))
    assert device.get(sums, np.empty(257, np.uint32)).tolist() == [i * (i - 1) // 2 for i in range(257)]
    device.launch("warps", (1, 1), (sums.address,))
    assert device.get(sums, np.empty(256, np.uint32)).tolist() == [
        i % 32 * (i % 32 + 1) // 2 + 32 + 3 + 16 for i in range(256)
    ]


def test_uninitialised_memory_is_not_zero(device):
    out = device.allocate(8)
    assert device.download(out.address, 8).tolist() == [0xA5] * 8
    device.launch("not_written", (1, 1), (out.address,))
    assert device.download(out.address, 4).tolist() == [0xA5] * 4


@pytest.mark.parametrize(
    ("kernel", "size", "arguments", "report"),
    [
        ("copy", 4000, (1001,), "heap-buffer-overflow"),
        ("half_at_the_barrier", 0, (), "ended while others wait"),
        ("half_a_warp", 0, (), "lanes of its warp that do not come"),
        ("beyond_shared", 4, (), "out of bounds"),
        ("shift", 4, (32,), "shift exponent 32"),
        ("copy", 4, (1, 2), "number of arguments"),
        ("nothing", 0, (), "no kernel nothing"),
    ],
)
def test_faults_are_reported(device, kernel, size, arguments, report):
    memory = [device.put(np.zeros(size, np.uint8)) for _ in range(2 if kernel == "copy" else 1 if size else 0)]
    with pytest.raises(KernelError, match=report):
        device.launch(kernel, (4, 1), (*(one.address for one in memory), *arguments))


def test_an_empty_grid_is_refused(device):
    with pytest.raises(KernelError, match="invalid grid"):
        device.launch("copy", (0, 1), (0, 0, 0))


def test_freed_memory_is_not_read(device):
    memory, out = device.put(np.zeros(4, np.uint8)), device.put(np.zeros(4, np.uint8))
    address = memory.address
    del memory
    with pytest.raises(KernelError, match="use-after-free"):
        device.launch("copy", (1, 1), (address, out.address, 1))


def test_a_race_shows_under_another_order(source):
    found = []
    for seed in (0, 1, 2):
        device = CpuDevice(seed, [source])
        out = device.put(np.zeros(256, np.uint32))
        device.launch("racing", (1, 1), (out.address,))
        found.append(device.get(out, np.empty(256, np.uint32)).tolist())
        device.close()
    assert len(found) == 3 and found[0] != found[1]


def test_a_missing_barrier_shows(device):
    """A warp goes on to its next barrier of the block before others have come as far."""
    out = device.put(np.zeros(256, np.uint32))
    device.launch("missing_barrier", (1, 1), (out.address,))
    assert device.get(out, np.empty(256, np.uint32)).max() > 8
