// Rows of codes, and which of them are equal: what chains that send equal rows once begin with.
#include "quantize.cuh"
#include "rows.cuh"

template <int DTYPE>
__device__ inline void count(const Section &s, const State &grid, u32 first, u32 size, u32 &narrow, u32 &wide) {
    for (u32 i = lane_id(); i < size; i += 32) {
        bool held;
        quantize<DTYPE>(s, grid, first + i, TOP_BYTE, held);
        narrow += !held;
        if (!held) quantize<DTYPE>(s, grid, first + i, TOP_TWO, held);
        wide += !held;
    }
}

// Patches of each block with codes of one byte and of two. A warp a block of 1024 values.
extern "C" __global__ void __launch_bounds__(256) count_patches(
    const Section *sections, const u32 *owners, i64 blocks, const State *states, u32 *narrow, u32 *wide) {
    i64 block = ((i64)blockIdx.x * THREADS + threadIdx.x) / 32;
    if (block >= blocks) return;
    u32 owner = owners[block];
    const Section &s = sections[owner];
    const State &grid = states[owner];
    if (s.work < 0 || grid.bound == 0.0f) return;
    u32 first = (u32)(block - s.first_block) * BLOCK, size = min(BLOCK, (u32)s.n - first), one = 0, two = 0;
    if (s.dtype == FLOAT32) count<FLOAT32>(s, grid, first, size, one, two);
    else if (s.dtype == FLOAT16) count<FLOAT16>(s, grid, first, size, one, two);
    else count<BFLOAT16>(s, grid, first, size, one, two);
    one = warp_sum(one);
    two = warp_sum(two);
    if (lane_id() == 0) {
        narrow[block] = one;
        wide[block] = two;
    }
}

// Sum of `counts` over the blocks of a section; each is replaced by the sum before it, if asked. All threads call it.
__device__ inline u32 sum_blocks(BlockScan &scan, const Section &s, u32 *counts, bool replace) {
    u32 total = 0;
    for (u32 start = 0; start < blocks_of((u32)s.n); start += THREADS) {
        u32 block = start + threadIdx.x;
        bool mine = block < blocks_of((u32)s.n);
        u32 all, before = block_scan(scan, mine ? counts[s.first_block + block] : 0, all);
        if (mine && replace) counts[s.first_block + block] = total + before;
        total += all;
    }
    return total;
}

// Width of codes, and where the patches of each block begin: in `narrow`. A CUDA block a `Rows`.
extern "C" __global__ void __launch_bounds__(256)
    choose_widths(const Section *sections, const Rows *all_rows, State *states, u32 *narrow, u32 *wide) {
    __shared__ BlockScan scan;
    const Rows &rows = all_rows[blockIdx.x];
    const Section &s = sections[rows.section];
    State &state = states[rows.section];
    u32 width = 0, patches = 0;
    if (state.bound != 0.0f) {
        width = 1;
        patches = sum_blocks(scan, s, narrow, false);
        if (128ull * patches > (u64)s.n) {
            width = 2;
            patches = sum_blocks(scan, s, wide, true);
            for (u32 block = threadIdx.x; block < blocks_of((u32)s.n); block += THREADS)
                narrow[s.first_block + block] = wide[s.first_block + block];
        } else {
            sum_blocks(scan, s, narrow, true);
        }
        if (patches > most_patches((u32)s.n)) width = 0;
    }
    if (threadIdx.x) return;
    state.width = width;
    state.code_patches = patches;
}

template <int DTYPE>
__device__ inline void write_codes_of(const Section &s, const State &state, const Rows &rows, u32 first, u32 size) {
    u32 columns = (u32)rows.columns, width = state.width, stride = stride_of(columns, width);
    for (u32 i = first + lane_id(); i < first + size; i += 32) {
        bool held;
        int code = quantize<DTYPE>(s, state, i, width == 1 ? TOP_BYTE : TOP_TWO, held);
        u32 row = i / columns, column = i - row * columns;
        u8 *start = (u8 *)rows.codes + (u64)row * stride;
        if (width == 1) start[column] = (u8)code;
        else ((u16 *)start)[column] = (u16)code;
        if (column + 1 == columns)
            for (u32 rest = columns * width; rest < stride; rest++) start[rest] = 0;
    }
}

// Codes of all values. A warp a block of 1024 values.
extern "C" __global__ void __launch_bounds__(256) write_codes(
    const Section *sections, const u32 *owners, i64 blocks, const State *states, const Rows *all_rows) {
    i64 block = ((i64)blockIdx.x * THREADS + threadIdx.x) / 32;
    if (block >= blocks) return;
    u32 owner = owners[block];
    const Section &s = sections[owner];
    const State &state = states[owner];
    if (s.work < 0 || !state.width) return;
    const Rows &rows = all_rows[s.work];
    u32 first = (u32)(block - s.first_block) * BLOCK, size = min(BLOCK, (u32)s.n - first);
    if (s.dtype == FLOAT32) write_codes_of<FLOAT32>(s, state, rows, first, size);
    else if (s.dtype == FLOAT16) write_codes_of<FLOAT16>(s, state, rows, first, size);
    else write_codes_of<BFLOAT16>(s, state, rows, first, size);
}

// The row of this thread, of a chunk of rows; false if there is none, or its section is given up.
struct RowThread {
    const Rows *rows;
    State *state;
    u32 row;
    __device__ bool find(const Rows *all_rows, const u32 *row_owners, State *states) {
        rows = all_rows + row_owners[blockIdx.x];
        state = states + rows->section;
        row = (u32)(blockIdx.x - rows->first_chunk) * THREADS + threadIdx.x;
        return row < rows->rows && state->width && rows->columns > 1;
    }
};

// Each row into the hash table: a place of it has the first of the rows that are equal. A thread a row.
extern "C" __global__ void __launch_bounds__(256)
    match_rows(const Rows *all_rows, const u32 *row_owners, State *states) {
    RowThread mine;
    if (!mine.find(all_rows, row_owners, states)) return;
    const Rows &rows = *mine.rows;
    u32 words = stride_of((u32)rows.columns, mine.state->width) / 8, *table = (u32 *)rows.table;
    const u64 *codes = (const u64 *)rows.codes, *own = codes + (u64)mine.row * words;
    u64 hash = 0;
    for (u32 i = 0; i < words; i++) {
        hash = (hash ^ own[i]) * 0x9E3779B97F4A7C15ull;
        hash ^= hash >> 32;
    }
    u32 slot = (u32)hash & (u32)rows.mask;
    for (;;) {
        u32 other = atomicCAS(&table[slot], 0u, mine.row + 1);
        if (!other) break;
        const u64 *theirs = codes + (u64)(other - 1) * words;
        u64 different = 0;
        for (u32 i = 0; i < words && !different; i++) different = own[i] ^ theirs[i];
        if (!different) {
            atomicMin(&table[slot], mine.row + 1);
            break;
        }
        slot = (slot + 1) & (u32)rows.mask;
    }
    ((u32 *)rows.slots)[mine.row] = slot;
}

const u32 ROWS_OF_THREAD = 8;

// Number the distinct rows as they are first seen. A CUDA block a `Rows`.
extern "C" __global__ void __launch_bounds__(256) number_rows(const Rows *all_rows, State *states) {
    __shared__ BlockScan scan;
    const Rows &rows = all_rows[blockIdx.x];
    State &state = states[rows.section];
    if (!state.width || rows.columns == 1) {
        if (threadIdx.x == 0) state.distinct = (u32)rows.rows;
        return;
    }
    const u32 *slots = (const u32 *)rows.slots, *table = (const u32 *)rows.table;
    u32 *numbers = (u32 *)rows.numbers, *firsts = (u32 *)rows.firsts, total = 0;
    for (u32 start = 0; start < rows.rows; start += THREADS * ROWS_OF_THREAD) {
        u32 row = start + threadIdx.x * ROWS_OF_THREAD, stop = min(row + ROWS_OF_THREAD, (u32)rows.rows), news = 0;
        for (u32 r = row; r < stop; r++) news += table[slots[r]] == r + 1;
        u32 all, number = total + block_scan(scan, news, all);
        for (u32 r = row; r < stop; r++)
            if (table[slots[r]] == r + 1) {
                firsts[number] = r;
                numbers[r] = number++;
            }
        total += all;
    }
    if (threadIdx.x == 0) state.distinct = total;
}

// The number of each row that is not the first of its like. A thread a row.
extern "C" __global__ void __launch_bounds__(256)
    refer_rows(const Rows *all_rows, const u32 *row_owners, State *states) {
    RowThread mine;
    if (!mine.find(all_rows, row_owners, states)) return;
    u32 first = ((const u32 *)mine.rows->table)[((const u32 *)mine.rows->slots)[mine.row]] - 1;
    u32 *numbers = (u32 *)mine.rows->numbers;
    if (first != mine.row) numbers[mine.row] = numbers[first];
}

template <int DTYPE>
__device__ inline void write_patches_of(
    const Section &s, const State &state, u32 first, u32 size, u32 patch, u32 patch_end, u32 *patches) {
    for (u32 start = 0; patch < patch_end; start += 32) {
        u32 i = start + lane_id();
        bool held = true;
        if (i < size) quantize<DTYPE>(s, state, first + i, state.width == 1 ? TOP_BYTE : TOP_TWO, held);
        u32 missing = __ballot_sync(ALL, !held);
        if (!held) {
            u32 at = patch + __popc(missing & ((1u << lane_id()) - 1));
            patches[at] = first + i;
            patches[state.patches + at] = ((const typename Type<DTYPE>::Bits *)s.values)[first + i];
        }
        patch += __popc(missing);
    }
}

// Patches of sections whose rows are coded, which are their last words. A warp a block of 1024 values.
extern "C" __global__ void __launch_bounds__(256) write_code_patches(
    const Section *sections, const u32 *owners, i64 blocks, const State *states, const Message *messages,
    const u32 *places) {
    i64 at = ((i64)blockIdx.x * THREADS + threadIdx.x) / 32;
    if (at >= blocks) return;
    u32 owner = owners[at];
    const Section &s = sections[owner];
    const State &state = states[owner];
    if (state.chain != DEDUP && state.chain != HUFFMAN) return;
    u32 block = (u32)(at - s.first_block), first = block * BLOCK, size = min(BLOCK, (u32)s.n - first);
    u32 *patches = (u32 *)messages[s.message].words + state.start + state.words - 2 * state.patches;
    u32 patch_end = block + 1 < blocks_of((u32)s.n) ? places[at + 1] : state.patches;
    if (s.dtype == FLOAT32) write_patches_of<FLOAT32>(s, state, first, size, places[at], patch_end, patches);
    else if (s.dtype == FLOAT16) write_patches_of<FLOAT16>(s, state, first, size, places[at], patch_end, patches);
    else write_patches_of<BFLOAT16>(s, state, first, size, places[at], patch_end, patches);
}
