// Sections of chains bitpack and raw back to values. A section that does not hold together is not looked at further.
#include "packing.cuh"
#include "quantize.cuh"

// Width and first word of each block. A CUDA block a section.
extern "C" __global__ void __launch_bounds__(256) find_blocks(
    const Section *sections, State *states, const Message *messages, u32 *widths, u32 *offsets, u32 *problems) {
    __shared__ BlockScan scan;
    const Section &s = sections[blockIdx.x];
    State &state = states[blockIdx.x];
    if (problems[s.message] & BAD_FRAME || state.chain != BITPACK) return;
    const u32 *words = (const u32 *)messages[s.message].words + state.start;
    u32 n = (u32)s.n, begin = 2 + ceil_div(blocks_of(n), 4), total = 0;
    bool good = begin <= state.words;
    u64 packed = good ? words[0] : 0, patches = good ? words[1] : 0;
    good = good && patches <= n && begin + packed + 2 * patches == state.words;
    // All threads have the same `good` so far. Widths are bounded, so sums do not overflow.
    for (u32 start = 0; good && start < blocks_of(n); start += THREADS) {
        u32 block = start + threadIdx.x;
        bool mine = block < blocks_of(n);
        u32 width = mine ? words[2 + block / 4] >> 8 * (block % 4) & 0xFF : 0;
        u32 all, wrong, before = block_scan(scan, mine ? block_words(min(BLOCK, n - block * BLOCK), min(width, 32u)) : 0, all);
        block_scan(scan, width > 32, wrong);
        if (mine) {
            widths[s.first_block + block] = width;
            offsets[s.first_block + block] = begin + total + before;
        }
        total += all;
        good = !wrong;
    }
    if (threadIdx.x) return;
    good = good && total == packed;
    state.packed = (u32)packed;
    state.patches = (u32)patches;
    if (!good) atomicOr(&problems[s.message], (u32)BAD_SECTION);
}

template <int DTYPE> struct Values {
    typename Type<DTYPE>::Bits *out;
    float step;
    __device__ void operator()(u32 i, u32 code) const {
        out[i] = Type<DTYPE>::narrow(__fmul_rn((float)unzigzag(code), step));
    }
};

template <int DTYPE>
__device__ inline void read_block(
    const Section &s, const State &state, u32 block, const u32 *widths, const u32 *offsets, const u32 *words) {
    u32 first = block * BLOCK, count = min(BLOCK, (u32)s.n - first);
    i64 at = s.first_block + block;
    typename Type<DTYPE>::Bits *out = (typename Type<DTYPE>::Bits *)s.values + first;
    if (state.chain == BITPACK) {
        unpack_block(words + offsets[at], count, widths[at], Values<DTYPE>{out, state.step});
    } else if (state.chain == RAW) {
        for (u32 i = lane_id(); i < count; i += 32)
            out[i] = DTYPE == FLOAT32 ? words[first + i] : words[(first + i) / 2] >> 16 * (i % 2) & 0xFFFF;
    }
}

extern "C" __global__ void __launch_bounds__(256) read_blocks(
    const Section *sections, const u32 *owners, i64 blocks, const State *states, const Message *messages,
    const u32 *widths, const u32 *offsets, const u32 *problems) {
    i64 at = ((i64)blockIdx.x * THREADS + threadIdx.x) / 32;
    if (at >= blocks) return;
    u32 owner = owners[at];
    const Section &s = sections[owner];
    const State &state = states[owner];
    if (problems[s.message]) return;
    const u32 *words = (const u32 *)messages[s.message].words + state.start;
    u32 block = (u32)(at - s.first_block);
    if (s.dtype == FLOAT32) read_block<FLOAT32>(s, state, block, widths, offsets, words);
    else if (s.dtype == FLOAT16) read_block<FLOAT16>(s, state, block, widths, offsets, words);
    else read_block<BFLOAT16>(s, state, block, widths, offsets, words);
}

// What no code holds. A CUDA block a section.
extern "C" __global__ void __launch_bounds__(256)
    read_patches(const Section *sections, const State *states, const Message *messages, u32 *problems) {
    const Section &s = sections[blockIdx.x];
    const State &state = states[blockIdx.x];
    if (problems[s.message] & (BAD_FRAME | BAD_SECTION | BAD_NUMBER) || state.chain == RAW) return;
    const u32 *end = (const u32 *)messages[s.message].words + state.start + state.words;
    const u32 *bits = end - state.patches, *places = bits - state.patches;
    bool good = true;
    for (u32 i = threadIdx.x; i < state.patches; i += THREADS) {
        u32 at = places[i];
        // Two of one index would race; no encoder makes them.
        bool one = at < s.n && (i == 0 || places[i - 1] < at) && (s.dtype == FLOAT32 || bits[i] < 65536);
        if (one && s.dtype == FLOAT32) ((u32 *)s.values)[at] = bits[i];
        if (one && s.dtype != FLOAT32) ((u16 *)s.values)[at] = (u16)bits[i];
        good = good && one;
    }
    if (!good) atomicOr(&problems[s.message], (u32)BAD_PATCH);
}
