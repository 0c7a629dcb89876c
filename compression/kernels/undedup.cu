// Sections of chain dedup back to codes, and codes of distinct rows to values.
#include "packing.cuh"
#include "quantize.cuh"
#include "rows.cuh"

const u32 DEDUP_HEADER = 4;

// Widths and first words of the blocks of a stream of n values in words[begin : end]; false if it does not fill them.
// All threads of a CUDA block call it, with the same arguments.
__device__ inline bool find_stream(
    BlockScan &scan, const u32 *words, u64 begin, u64 end, u32 n, u32 *widths, u32 *offsets) {
    u64 at = begin + ceil_div(blocks_of(n), 4);
    if (at > end) return false;
    for (u32 start = 0; start < blocks_of(n); start += THREADS) {
        u32 block = start + threadIdx.x;
        bool mine = block < blocks_of(n);
        u32 width = mine ? words[begin + block / 4] >> 8 * (block % 4) & 0xFF : 0, wrong, all;
        u32 size = mine ? block_words(min(BLOCK, n - block * BLOCK), min(width, 32u)) : 0;
        u32 before = block_scan(scan, size, all);
        block_scan(scan, width > 32, wrong);
        if (wrong) return false;
        if (mine) {
            widths[block] = width;
            offsets[block] = (u32)at + before;
        }
        at += all;
    }
    return at == end;
}

// Header and blocks of both streams. A CUDA block a `Rows`.
extern "C" __global__ void __launch_bounds__(256) find_streams(
    const Section *sections, const Rows *all_rows, State *states, const Message *messages, u32 *number_widths,
    u32 *code_widths, u32 *number_offsets, u32 *code_offsets, u32 *problems) {
    __shared__ BlockScan scan;
    const Rows &rows = all_rows[blockIdx.x];
    const Section &s = sections[rows.section];
    State &state = states[rows.section];
    if (problems[s.message] & BAD_FRAME || state.chain != DEDUP) return;
    const u32 *words = (const u32 *)messages[s.message].words + state.start;
    bool good = rows.columns > 1 && state.words >= DEDUP_HEADER;
    u32 distinct = good ? words[0] : 1, patches = good ? words[1] : 0, width = good ? words[3] : 1;
    u64 middle = DEDUP_HEADER + (u64)(good ? words[2] : 0), end = state.words - 2 * (u64)patches;
    good = good && distinct >= 1 && distinct <= rows.rows && patches <= s.n && (width == 1 || width == 2) &&
           2 * (u64)patches <= state.words && middle <= end;
    i64 at = s.first_block;
    good = good && find_stream(scan, words, DEDUP_HEADER, middle, (u32)rows.rows, number_widths + at, number_offsets + at);
    good = good && find_stream(
        scan, words, middle, end, distinct * (u32)rows.columns, code_widths + at, code_offsets + at);
    if (threadIdx.x) return;
    state.distinct = distinct;
    state.patches = patches;
    state.width = width;
    if (!good) atomicOr(&problems[s.message], (u32)BAD_SECTION);
}

struct TakeNumbers {
    u32 *numbers, distinct;
    bool &good;
    __device__ void operator()(u32 i, u32 value) const {
        numbers[i] = value;
        good = good && value < distinct;
    }
};
struct TakeCodes {
    short *codes;
    u32 width;
    __device__ void operator()(u32 i, u32 value) const {
        int code = unzigzag(value);
        codes[i] = width == 1 ? (short)(signed char)code : (short)code;
    }
};

// Both streams into working memory: codes i16 [distinct * columns]. A warp a block.
extern "C" __global__ void __launch_bounds__(256) read_streams(
    const Section *sections, const u32 *owners, i64 blocks, const State *states, const Message *messages,
    const Rows *all_rows, const u32 *number_widths, const u32 *code_widths, const u32 *number_offsets,
    const u32 *code_offsets, u32 *problems) {
    i64 at = ((i64)blockIdx.x * THREADS + threadIdx.x) / 32;
    if (at >= blocks) return;
    u32 owner = owners[at];
    const Section &s = sections[owner];
    const State &state = states[owner];
    if (state.chain != DEDUP || problems[s.message] & (BAD_FRAME | BAD_SECTION)) return;
    const Rows &rows = all_rows[s.work];
    const u32 *words = (const u32 *)messages[s.message].words + state.start;
    u32 block = (u32)(at - s.first_block), first = block * BLOCK, n = state.distinct * (u32)rows.columns;
    bool good = true;
    if (first < rows.rows) {
        TakeNumbers take = {(u32 *)rows.numbers + first, state.distinct, good};
        unpack_block(words + number_offsets[at], min(BLOCK, (u32)rows.rows - first), number_widths[at], take);
    }
    if (first < n) {
        TakeCodes take = {(short *)rows.codes + first, state.width};
        unpack_block(words + code_offsets[at], min(BLOCK, n - first), code_widths[at], take);
    }
    if (!good) atomicOr(&problems[s.message], (u32)BAD_NUMBER);
}

template <int DTYPE>
__device__ inline void expand(const Section &s, const State &state, const Rows &rows, u32 first, u32 size) {
    typename Type<DTYPE>::Bits *out = (typename Type<DTYPE>::Bits *)s.values;
    const u32 *numbers = (const u32 *)rows.numbers;
    u32 columns = (u32)rows.columns;
    for (u32 i = first + lane_id(); i < first + size; i += 32) {
        u32 row = i / columns;
        u32 number = state.distinct < rows.rows || state.chain == DEDUP ? numbers[row] : row;
        int code = ((const short *)rows.codes)[number * columns + i - row * columns];
        out[i] = Type<DTYPE>::narrow(__fmul_rn((float)code, state.step));
    }
}

// Values of all rows. A warp a block.
extern "C" __global__ void __launch_bounds__(256) expand_rows(
    const Section *sections, const u32 *owners, i64 blocks, const State *states, const Rows *all_rows,
    const u32 *problems) {
    i64 at = ((i64)blockIdx.x * THREADS + threadIdx.x) / 32;
    if (at >= blocks) return;
    u32 owner = owners[at];
    const Section &s = sections[owner];
    const State &state = states[owner];
    if ((state.chain != DEDUP && state.chain != HUFFMAN) || problems[s.message]) return;
    const Rows &rows = all_rows[s.work];
    u32 first = (u32)(at - s.first_block) * BLOCK, size = min(BLOCK, (u32)s.n - first);
    if (s.dtype == FLOAT32) expand<FLOAT32>(s, state, rows, first, size);
    else if (s.dtype == FLOAT16) expand<FLOAT16>(s, state, rows, first, size);
    else expand<BFLOAT16>(s, state, rows, first, size);
}
