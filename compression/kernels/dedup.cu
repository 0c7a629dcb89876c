// Chain dedup: the numbers of rows and the codes of distinct rows, both packed. A warp a block of 1024 values.
#include "packing.cuh"
#include "quantize.cuh"
#include "rows.cuh"

const u32 DEDUP_HEADER = 4;

struct Numbers {
    const u32 *numbers;
    u32 first;
    __device__ u32 operator()(u32 i) const { return numbers[first + i]; }
};
struct DistinctCodes {
    const Rows &rows;
    u32 width, first;
    __device__ u32 operator()(u32 i) const {
        u32 columns = (u32)rows.columns, place = (first + i) / columns;
        return zigzag(code_at(rows, width, ((const u32 *)rows.firsts)[place], first + i - place * columns));
    }
};

template <class Value> __device__ inline u32 width_of(const Value &value, u32 size) {
    u32 seen = 0;
    for (u32 i = lane_id(); i < size; i += 32) seen |= value(i);
    return bits_of(warp_or(seen));
}
__device__ inline u32 size_of_block(u32 n, u32 block) { return block < blocks_of(n) ? min(BLOCK, n - block * BLOCK) : 0; }

// Widths of the blocks of both streams. Block b of a section is that of both.
extern "C" __global__ void __launch_bounds__(256) measure_streams(
    const Section *sections, const u32 *owners, i64 blocks, const State *states, const Rows *all_rows,
    u32 *number_widths, u32 *code_widths) {
    i64 at = ((i64)blockIdx.x * THREADS + threadIdx.x) / 32;
    if (at >= blocks) return;
    u32 owner = owners[at];
    const Section &s = sections[owner];
    const State &state = states[owner];
    if (s.chain != DEDUP || s.work < 0 || !state.width) return;
    const Rows &rows = all_rows[s.work];
    u32 block = (u32)(at - s.first_block), n = state.distinct * (u32)rows.columns;
    u32 one = width_of(Numbers{(const u32 *)rows.numbers, block * BLOCK}, size_of_block((u32)rows.rows, block));
    u32 two = width_of(DistinctCodes{rows, state.width, block * BLOCK}, size_of_block(n, block));
    if (lane_id() == 0) {
        number_widths[at] = one;
        code_widths[at] = two;
    }
}

// Where blocks of a stream begin; returns its words. All threads of a CUDA block call it.
__device__ inline u32 place_stream(BlockScan &scan, i64 first_block, u32 n, const u32 *widths, u32 *offsets) {
    u32 total = 0;
    for (u32 start = 0; start < blocks_of(n); start += THREADS) {
        u32 block = start + threadIdx.x, size = size_of_block(n, block);
        u32 all, before = block_scan(scan, size ? block_words(size, widths[first_block + block]) : 0, all);
        if (size) offsets[first_block + block] = total + before;
        total += all;
    }
    return total;
}

// Take chain dedup where it makes a section smaller; else it stays what `place_blocks` found. A CUDA block a `Rows`.
extern "C" __global__ void __launch_bounds__(256) place_streams(
    const Section *sections, const Rows *all_rows, State *states, const u32 *number_widths, const u32 *code_widths,
    u32 *number_offsets, u32 *code_offsets) {
    __shared__ BlockScan scan;
    const Rows &rows = all_rows[blockIdx.x];
    const Section &s = sections[rows.section];
    State &state = states[rows.section];
    if (s.chain != DEDUP || !state.width) return;
    u32 r = (u32)rows.rows, n = state.distinct * (u32)rows.columns;
    u32 numbered = ceil_div(blocks_of(r), 4) + place_stream(scan, s.first_block, r, number_widths, number_offsets);
    u32 coded = ceil_div(blocks_of(n), 4) + place_stream(scan, s.first_block, n, code_widths, code_offsets);
    u32 total = DEDUP_HEADER + numbered + coded + 2 * state.code_patches;
    if (threadIdx.x || total >= raw_words(s)) return;
    state.chain = DEDUP;
    state.bound = __uint_as_float(__float_as_uint(state.limit) + 1);  // `place_blocks` may have made it 0
    state.numbered = numbered;
    state.patches = state.code_patches;
    state.words = total;
}

// The widths of four blocks, which are one word, by the warp of the first of them.
__device__ inline void write_widths(u32 *words, const u32 *widths, u32 block, u32 blocks) {
    if (lane_id() || block % 4 || block >= blocks) return;
    u32 four = 0;
    for (u32 i = 0; i < min(4u, blocks - block); i++) four |= widths[i] << 8 * i;
    words[block / 4] = four;
}

// The words of sections of chain dedup. A warp a block.
extern "C" __global__ void __launch_bounds__(256, 4) write_streams(
    const Section *sections, const u32 *owners, i64 blocks, const State *states, const Message *messages,
    const Rows *all_rows, const u32 *number_widths, const u32 *code_widths, const u32 *number_offsets,
    const u32 *code_offsets) {
    i64 at = ((i64)blockIdx.x * THREADS + threadIdx.x) / 32;
    if (at >= blocks) return;
    u32 owner = owners[at];
    const Section &s = sections[owner];
    const State &state = states[owner];
    if (state.chain != DEDUP) return;
    const Rows &rows = all_rows[s.work];
    u32 *words = (u32 *)messages[s.message].words + state.start, block = (u32)(at - s.first_block);
    u32 r = (u32)rows.rows, n = state.distinct * (u32)rows.columns, size = size_of_block(r, block);
    if (block == 0 && lane_id() == 0) {
        words[0] = state.distinct;
        words[1] = state.patches;
        words[2] = state.numbered;
        words[3] = state.width;
    }
    u32 *numbers = words + DEDUP_HEADER, *codes = numbers + state.numbered;
    write_widths(numbers, number_widths + at, block, blocks_of(r));
    write_widths(codes, code_widths + at, block, blocks_of(n));
    numbers += ceil_div(blocks_of(r), 4);
    codes += ceil_div(blocks_of(n), 4);
    if (size) {
        Numbers value = {(const u32 *)rows.numbers, block * BLOCK};
        pack_block(value, size, number_widths[at], numbers + number_offsets[at]);
    }
    size = size_of_block(n, block);
    if (size) {
        DistinctCodes value = {rows, state.width, block * BLOCK};
        pack_block(value, size, code_widths[at], codes + code_offsets[at]);
    }
}
