// Lookups in the order of their rows, those of a row in their own order: a stable radix sort by 8 bits a pass.
#include "common.cuh"

const u32 DIGITS = 256, WARPS = THREADS / 32;

// How many lookups of each CUDA block have each digit: counts[digit * blocks + block]. A thread a lookup.
extern "C" __global__ void __launch_bounds__(256) count_digits(const u32 *keys, i64 n, i64 shift, u32 *counts) {
    __shared__ u32 of_digit[DIGITS];
    of_digit[threadIdx.x] = 0;
    __syncthreads();
    i64 i = (i64)blockIdx.x * THREADS + threadIdx.x;
    if (i < n) atomicAdd(&of_digit[keys[i] >> shift & (DIGITS - 1)], 1u);
    __syncthreads();
    counts[(i64)threadIdx.x * gridDim.x + blockIdx.x] = of_digit[threadIdx.x];
}

// Move them; `counts` are sums of the counts before. `positions` 0: they are the numbers of the lookups.
extern "C" __global__ void __launch_bounds__(256) move_by_digit(
    const u32 *keys, const u32 *positions, i64 n, i64 shift, const u32 *counts, u32 *new_keys, u32 *new_positions) {
    __shared__ u32 of_warp[WARPS][DIGITS];
    for (u32 w = 0; w < WARPS; w++) of_warp[w][threadIdx.x] = 0;
    __syncthreads();
    i64 i = (i64)blockIdx.x * THREADS + threadIdx.x;
    u32 warp = threadIdx.x / 32, key = i < n ? keys[i] : 0, digit = key >> shift & (DIGITS - 1);
    u32 alike = __ballot_sync(ALL, i < n);  // lanes of this digit
    for (u32 bit = 0; bit < 8; bit++) {
        u32 ones = __ballot_sync(ALL, digit >> bit & 1);
        alike &= digit >> bit & 1 ? ones : ~ones;
    }
    u32 before = __popc(alike & ((1u << lane_id()) - 1));
    if (i < n && before == 0) of_warp[warp][digit] = __popc(alike);
    __syncthreads();
    if (i >= n) return;
    u32 to = counts[(i64)digit * gridDim.x + blockIdx.x] + before;
    for (u32 w = 0; w < warp; w++) to += of_warp[w][digit];
    new_keys[to] = key;
    new_positions[to] = positions ? positions[i] : (u32)i;
}

// 1 + the first lookup of each row, in sorted order; 0 before, and for a row without any. A thread a lookup.
extern "C" __global__ void __launch_bounds__(256) find_runs(const u32 *keys, i64 n, u32 *starts) {
    i64 i = (i64)blockIdx.x * THREADS + threadIdx.x;
    if (i < n && (i == 0 || keys[i - 1] != keys[i])) starts[keys[i]] = (u32)i + 1;
}
