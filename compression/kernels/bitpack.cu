// Chain bitpack: widths and patches of blocks, their places, packed codes. A warp a block of 1024 values.
#include "packing.cuh"
#include "quantize.cuh"

template <int DTYPE>
__device__ inline void measure(const Section &s, const State &grid, u32 first, u32 count, u32 &seen, u32 &missed) {
#pragma unroll 8
    for (u32 i = lane_id(); i < count; i += 32) {
        bool held;
        seen |= zigzag(quantize<DTYPE>(s, grid, first + i, TOP_PACKED, held));
        missed += !held;
    }
}

// Width and number of patches of each block.
extern "C" __global__ void __launch_bounds__(256) measure_blocks(
    const Section *sections, const u32 *owners, i64 blocks, const State *states, u32 *widths, u32 *missed) {
    i64 block = ((i64)blockIdx.x * THREADS + threadIdx.x) / 32;
    if (block >= blocks) return;
    u32 owner = owners[block];
    const Section &s = sections[owner];
    const State &grid = states[owner];
    if (grid.chain == RAW) return;
    u32 first = (u32)(block - s.first_block) * BLOCK, count = min(BLOCK, (u32)s.n - first);
    u32 seen = 0, some = 0;
    if (s.dtype == FLOAT32) measure<FLOAT32>(s, grid, first, count, seen, some);
    else if (s.dtype == FLOAT16) measure<FLOAT16>(s, grid, first, count, seen, some);
    else measure<BFLOAT16>(s, grid, first, count, seen, some);
    seen = warp_or(seen);
    some = warp_sum(some);
    if (lane_id() == 0) {
        widths[block] = bits_of(seen);
        missed[block] = some;
    }
}

// Where the words and the patches of each block begin among those of its section, and what becomes of the section:
// bitpack, or raw. A CUDA block a section; `missed` is replaced.
extern "C" __global__ void __launch_bounds__(256) place_blocks(
    const Section *sections, State *states, const u32 *widths, u32 *missed, u32 *offsets) {
    __shared__ BlockScan scan;
    const Section &s = sections[blockIdx.x];
    State &state = states[blockIdx.x];
    u32 n = (u32)s.n, raw = raw_words(s), words = 0, patches = 0;
    bool packed = state.chain != RAW;
    for (u32 start = 0; packed && start < blocks_of(n); start += THREADS) {
        u32 block = start + threadIdx.x;
        i64 at = s.first_block + block;
        bool mine = block < blocks_of(n);
        u32 size = mine ? block_words(min(BLOCK, n - block * BLOCK), widths[at]) : 0, some = mine ? missed[at] : 0;
        u32 all, every, before = block_scan(scan, size, all), ahead = block_scan(scan, some, every);
        if (mine) {
            offsets[at] = words + before;
            missed[at] = patches + ahead;
        }
        words += all;
        patches += every;
    }
    if (threadIdx.x) return;
    u32 total = 2 + ceil_div(blocks_of(n), 4) + words + 2 * patches;
    if (packed && patches <= most_patches(n) && total < raw) {
        state.chain = BITPACK;
        state.packed = words;
        state.patches = patches;
        state.words = total;
    } else {
        state.chain = RAW;
        state.bound = 0.0f;
        state.words = raw;
    }
}

template <int DTYPE> struct Codes {
    const Section &s;
    const State &grid;
    u32 first;
    __device__ u32 operator()(u32 i) const {
        bool held;
        return zigzag(quantize<DTYPE>(s, grid, first + i, TOP_PACKED, held));
    }
};

template <int DTYPE>
__device__ inline void pack(
    const Section &s, const State &state, u32 first, u32 count, u32 width, u32 offset, u32 patch, u32 patch_end,
    u32 *words) {
    u32 *packed = words + 2 + ceil_div(blocks_of((u32)s.n), 4), *patches = packed + state.packed;
    pack_block(Codes<DTYPE>{s, state, first}, count, width, packed + offset);
    for (u32 start = 0; patch < patch_end; start += 32) {
        u32 i = start + lane_id();
        bool held = true;
        if (i < count) quantize<DTYPE>(s, state, first + i, TOP_PACKED, held);
        u32 missing = __ballot_sync(ALL, !held);
        if (!held) {
            u32 at = patch + __popc(missing & ((1u << lane_id()) - 1));
            patches[at] = first + i;
            patches[state.patches + at] = ((const typename Type<DTYPE>::Bits *)s.values)[first + i];
        }
        patch += __popc(missing);
    }
}

// Values as they are: whole words, the last one padded.
template <int DTYPE> __device__ inline void copy_raw(const Section &s, u32 first, u32 count, u32 *words) {
    if (DTYPE == FLOAT32) {
        for (u32 i = lane_id(); i < count; i += 32) words[first + i] = ((const u32 *)s.values)[first + i];
        return;
    }
    const u16 *halves = (const u16 *)s.values + first;
    for (u32 k = lane_id(); k < (count + 1) / 2; k += 32)
        words[first / 2 + k] = halves[2 * k] | (2 * k + 1 < count ? (u32)halves[2 * k + 1] << 16 : 0);
}

template <int DTYPE>
__device__ inline void write_block(
    const Section &s, const State &state, u32 block, const u32 *widths, const u32 *places, const u32 *offsets,
    u32 *words) {
    i64 at = s.first_block + block;
    u32 n = (u32)s.n, first = block * BLOCK, count = min(BLOCK, n - first);
    if (state.chain == RAW) return copy_raw<DTYPE>(s, first, count, words);
    if (state.chain != BITPACK) return;
    u32 patch_end = block + 1 < blocks_of(n) ? places[at + 1] : state.patches;
    pack<DTYPE>(s, state, first, count, widths[at], offsets[at], places[at], patch_end, words);
    if (lane_id() == 0 && block % 4 == 0) {
        u32 four = 0;
        for (u32 i = 0; i < min(4u, blocks_of(n) - block); i++) four |= widths[at + i] << 8 * i;
        words[2 + block / 4] = four;
        if (block == 0) {
            words[0] = state.packed;
            words[1] = state.patches;
        }
    }
}

// The words of sections of chains bitpack and raw, each at its place in its message.
extern "C" __global__ void __launch_bounds__(256, 4) write_blocks(
    const Section *sections, const u32 *owners, i64 blocks, const State *states, const Message *messages,
    const u32 *widths, const u32 *places, const u32 *offsets) {
    i64 at = ((i64)blockIdx.x * THREADS + threadIdx.x) / 32;
    if (at >= blocks) return;
    u32 owner = owners[at];
    const Section &s = sections[owner];
    const State &state = states[owner];
    u32 *words = (u32 *)messages[s.message].words + state.start, block = (u32)(at - s.first_block);
    if (s.dtype == FLOAT32) write_block<FLOAT32>(s, state, block, widths, places, offsets, words);
    else if (s.dtype == FLOAT16) write_block<FLOAT16>(s, state, block, widths, places, offsets, words);
    else write_block<BFLOAT16>(s, state, block, widths, places, offsets, words);
}
