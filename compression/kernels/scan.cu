// Exclusive sums of any number of u32 in place, in three launches: of chunks, over chunks, within chunks.
#include "common.cuh"

const u32 OF_THREAD = 8, CHUNK = OF_THREAD * THREADS;

// The sum of each chunk.
extern "C" __global__ void __launch_bounds__(256) sum_chunks(const u32 *values, i64 n, u32 *sums) {
    __shared__ BlockScan scan;
    i64 start = (i64)blockIdx.x * CHUNK;
    u32 own = 0, all;
    for (u32 i = 0; i < OF_THREAD; i++) {
        i64 at = start + i * THREADS + threadIdx.x;
        if (at < n) own += values[at];
    }
    block_scan(scan, own, all);
    if (threadIdx.x == 0) sums[blockIdx.x] = all;
}

// Each sum becomes that of the chunks before it, and the sum of all follows them. One CUDA block.
extern "C" __global__ void __launch_bounds__(256) scan_sums(u32 *sums, i64 chunks) {
    __shared__ BlockScan scan;
    u32 total = 0;
    for (i64 start = 0; start < chunks; start += THREADS) {
        i64 at = start + threadIdx.x;
        u32 all, before = block_scan(scan, at < chunks ? sums[at] : 0, all);
        if (at < chunks) sums[at] = total + before;
        total += all;
    }
    if (threadIdx.x == 0) sums[chunks] = total;
}

// Each value becomes the sum of those before it.
extern "C" __global__ void __launch_bounds__(256) scan_chunks(u32 *values, i64 n, const u32 *sums) {
    __shared__ BlockScan scan;
    u32 total = sums[blockIdx.x];
    for (u32 i = 0; i < OF_THREAD; i++) {
        i64 at = (i64)blockIdx.x * CHUNK + i * THREADS + threadIdx.x;
        u32 all, before = block_scan(scan, at < n ? values[at] : 0, all);
        if (at < n) values[at] = total + before;
        total += all;
    }
}
