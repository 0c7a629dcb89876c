// Bounds of sections: ranges of tables where they are relative, steps and limits.
#include "quantize.cuh"

// Unsigned numbers in the order of the floats.
__device__ inline u32 ordered(u32 bits) { return bits >> 31 ? ~bits : bits | 0x80000000u; }
__device__ inline float of_ordered(u32 key) { return __uint_as_float(key >> 31 ? key & 0x7FFFFFFFu : ~key); }

template <int DTYPE> __device__ inline void range_of(const Section &s, u32 first, u32 count, u32 *range) {
    u32 high = 0, low = 0;
    for (u32 i = lane_id(); i < count; i += 32) {
        u32 bits = __float_as_uint(Type<DTYPE>::widen(((const typename Type<DTYPE>::Bits *)s.values)[first + i]));
        if ((bits & 0x7F800000u) == 0x7F800000u) continue;
        high = max(high, ordered(bits));
        low = max(low, ~ordered(bits));
    }
    high = warp_max(high);
    low = warp_max(low);
    if (lane_id() == 0 && high) {
        atomicMax(&range[0], high);
        atomicMax(&range[1], low);
    }
}

// Largest finite value of each table and complement of the smallest, as `ordered`; 0 before. A warp a block of values.
extern "C" __global__ void __launch_bounds__(256)
    find_ranges(const Section *sections, const u32 *owners, i64 blocks, u32 *ranges) {
    i64 block = ((i64)blockIdx.x * THREADS + threadIdx.x) / 32;
    if (block >= blocks) return;
    const Section &s = sections[owners[block]];
    if (!s.relative) return;
    u32 first = (u32)(block - s.first_block) * BLOCK, count = min(BLOCK, (u32)s.n - first);
    u32 *range = ranges + 2 * s.table;
    if (s.dtype == FLOAT32) range_of<FLOAT32>(s, first, count, range);
    else if (s.dtype == FLOAT16) range_of<FLOAT16>(s, first, count, range);
    else range_of<BFLOAT16>(s, first, count, range);
}

__device__ inline float below(float positive) { return __uint_as_float(__float_as_uint(positive) - 1); }

// States of sections from their bounds; `problems` of messages are 0 before. A thread a section.
extern "C" __global__ void __launch_bounds__(256)
    make_grids(const Section *sections, i64 count, const u32 *ranges, State *states, u32 *problems) {
    i64 i = (i64)blockIdx.x * THREADS + threadIdx.x;
    if (i >= count) return;
    const Section &s = sections[i];
    State state = {1.0f, 1.0f, 1.0f, 0.0f, 1.0f, (u32)s.chain, 0, 0, 0, 0, 0, 0, 0, 0};
    double bound = s.bound;
    if (s.relative) {
        u32 high = ranges[2 * s.table], low = ranges[2 * s.table + 1];
        double size = high ? __dsub_rn((double)of_ordered(high), (double)of_ordered(~low)) : 0.0;
        bound = __dmul_rn(bound, size > 0 ? size : 0.0);
    }
    if (!s.n) {
        state.chain = RAW;
    } else if (s.chain != RAW && bound < 7.888609052210118e-31) {  // 2^-100: near subnormals
        atomicOr(&problems[s.message], (u32)NEEDS_LOSSLESS);
        state.chain = RAW;
    } else if (s.chain != RAW) {
        bound = min(bound, 1.329227995784916e36);  // 2^120
        float wire = (float)bound;
        if ((double)wire > bound) wire = below(wire);
        state.whole_limit = below(wire);
        state.bound = s.stochastic ? __fmul_rn(wire, 0.5f) : wire;
        state.limit = below(state.bound);
        state.step = (float)__dmul_rn(__dmul_rn(2.0, (double)state.bound), 1 - 1.0 / 16384);
        state.inverse = __fdiv_rn(1.0f, state.step);
    }
    states[i] = state;
}
