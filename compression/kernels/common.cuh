// What the kernels share: the records that the host writes, and small functions of a warp and of a block.
//
// No CUDA header is included, so that run-time compilation needs none. Floating-point arithmetic that decides about a
// byte is spelled in intrinsics of one rounding, and everything is compiled without fused multiply-add.
#pragma once

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;

const u32 ALL = 0xFFFFFFFFu;  // lanes of a warp
const u32 BLOCK = 1024;       // values that are packed together
const int THREADS = 256;      // of a block, of every kernel

enum Chain { RAW, LOSSLESS, BITPACK, HUFFMAN, RANS, DEDUP };
enum Dtype { FLOAT32, FLOAT16, BFLOAT16 };
const u32 MAGIC = 0x50525754, VERSION = 1, HEADER = 5, DESCRIPTOR = 5;

// Records written by the host; `records.py` has the same, all of 64-bit fields.
struct Section {
    u64 values;  // address of the first value, or of where it is decoded to
    i64 n, rows, columns, dtype, chain, table, message;
    i64 first_block;  // of all sections' blocks of BLOCK values
    i64 first_value;  // of the section in its table
    i64 stochastic, relative;
    u64 seed;
    double bound;  // absolute, or a share of the table's range
    i64 work;      // number of its `Rows`, -1 if its chain does not look for equal rows
};
struct Message {
    i64 first_section, sections;
    u64 words;     // address of the payload
    i64 capacity;  // words, when encoding the most it can have, when decoding what it has
};

// Working memory of a section whose equal rows are sent once: addresses, of u32 where not said.
struct Rows {
    i64 section, rows, columns;
    i64 first_chunk;  // of all sections' chunks of THREADS rows
    u64 codes;        // i8 or i16, each row filled up with zeros to 8 bytes
    u64 table;        // [mask + 1], 0 before: 1 + a row, by its hash
    i64 mask;
    u64 slots, numbers, firsts;  // [rows]
};

// What becomes of a section.
struct State {
    float step, inverse, limit, bound;
    float whole_limit;  // of the bound that was asked for, where stochastic rounding halves the other
    u32 chain, words, packed, patches, start;
    u32 width;         // bytes of a code, 0 if too many values have none
    u32 code_patches;  // with codes of this width
    u32 distinct;      // rows
    u32 numbered;      // words of the numbers of rows
};

// Values for the host: one word a message each.
enum Problem { NONE = 0, NEEDS_LOSSLESS = 1, BAD_FRAME = 2, BAD_SECTION = 4, BAD_PATCH = 8, BAD_NUMBER = 16, NEEDS_ROWS = 32, NEEDS_CODED = 64 };

__device__ inline u32 lane_id() { return threadIdx.x & 31; }
__device__ inline u32 ceil_div(u32 a, u32 b) { return (a + b - 1) / b; }
__device__ inline u32 blocks_of(u32 n) { return (n + BLOCK - 1) / BLOCK; }
__device__ inline u32 bits_of(u32 word) { return 32 - __clz(word); }
__device__ inline u32 block_words(u32 count, u32 width) { return (count * width + 31) >> 5; }
__device__ inline u32 raw_words(const Section &s) {
    return s.dtype == FLOAT32 ? (u32)s.n : (u32)((s.n + 1) >> 1);
}
__device__ inline u32 most_patches(u32 n) { return n / 16 + 32; }
__device__ inline u32 zigzag(int q) { return (u32)q << 1 ^ (u32)(q >> 31); }
__device__ inline int unzigzag(u32 z) { return (int)((z >> 1) ^ (0u - (z & 1))); }

__device__ inline u32 warp_sum(u32 value) {
    for (int step = 16; step; step >>= 1) value += __shfl_xor_sync(ALL, value, step);
    return value;
}
__device__ inline u32 warp_or(u32 value) {
    for (int step = 16; step; step >>= 1) value |= __shfl_xor_sync(ALL, value, step);
    return value;
}
__device__ inline u32 warp_max(u32 value) {
    for (int step = 16; step; step >>= 1) value = max(value, __shfl_xor_sync(ALL, value, step));
    return value;
}
// Sum of the values of this lane and those before it.
__device__ inline u32 warp_scan(u32 value) {
    for (u32 step = 1; step < 32; step <<= 1) {
        u32 before = __shfl_up_sync(ALL, value, step);
        if (lane_id() >= step) value += before;
    }
    return value;
}

// Exclusive sums over the THREADS threads of a block; `total` gets the sum of all. All threads must call it.
struct BlockScan {
    u32 sums[THREADS / 32];
};
__device__ inline u32 block_scan(BlockScan &shared, u32 value, u32 &total) {
    u32 inclusive = warp_scan(value), warp = threadIdx.x / 32;
    __syncthreads();  // the sums of a scan before this one have been read
    if (lane_id() == 31) shared.sums[warp] = inclusive;
    __syncthreads();
    u32 before = 0;
    total = 0;
    for (u32 w = 0; w < THREADS / 32; w++) {
        if (w < warp) before += shared.sums[w];
        total += shared.sums[w];
    }
    return before + inclusive - value;
}

// The checksum's mix of word i (docs/wire-format.md).
__device__ inline u32 mix(u32 word, u32 i) {
    u32 x = word + (i + 1) * 0x9E3779B9u;
    x = (x ^ (x >> 16)) * 0x7FEB352Du;
    x = (x ^ (x >> 15)) * 0x846CA68Bu;
    return x ^ (x >> 16);
}
