// Working memory and helpers of sections of chain huffman (docs/wire-format.md, "Chains huffman and rans").
#pragma once
#include "rows.cuh"

const u32 ESCAPE = 255, TABLES = 52, MAGNITUDES = 64, MOST_PIVOTS = 4, WIDEST = 128;
const u32 CODED_HEADER = 4, MESSAGE_CHUNK = 512, REFERENCE_SYMBOLS = 124, LONGEST = 12;

// Of a section: addresses of arrays, and what becomes known of it.
struct Coded {
    i64 rows;        // number of its `Rows`
    i64 first_unit;  // of all sections' columns of tiles
    u64 left;        // u16 [rows * columns]: residuals, tile by tile and there column by column
    u64 symbols;     // u8, likewise: those of a column begin where its residuals do
    u64 sample;      // i16 [256 * columns]
    u64 covariance;  // double [columns^2], of up to WIDEST columns
    u64 factor;      // double [columns * MOST_PIVOTS]
    u64 model;       // i16: pivots, shift, MOST_PIVOTS pivots; biases; weights of each pivot
    u64 choice;      // u8 [columns]
    u64 bits;        // u32 [tiles * columns]: of the column's symbols
    u64 bit_starts;  // u32, likewise: where they begin in the tile
    u64 escapes;     // u32, likewise: escapes of columns, then of those before
    u64 tiles;       // u32 [tiles]: first word in the section
    u64 reference_symbols;  // u8 [rows]
    u64 histogram;          // u32 [128], 0 before
    u64 codebook;           // u32 [128]: reversed code << 8 | length
    u64 reference_bits;     // u32 [chunks of THREADS rows]
    u64 reference_extra;    // u32, likewise: lower bits, then those of the chunks before
    u64 chunk_starts;       // u32 [chunks of MESSAGE_CHUNK rows]: first word in the message
    u64 decoding;           // u16 [4096]
};
struct CodedState {
    u32 used, last;  // symbols of references, the largest of them
    u32 message;     // words of the Huffman message
    u32 references, directory, escapes_at, escapes, unused;
};

// Tables that both sides know, by address; `tables.Family` has them.
struct Family {
    u64 known, paired;  // u8 [TABLES * 256], [TABLES]
    u64 codes;          // u32 [TABLES * 256]
    u64 costs, means;   // i32 [MAGNITUDES * TABLES], [TABLES]
    u64 decoding;       // u16 [TABLES * 4096]
};

__device__ inline u32 tile_rows(u32 columns) { return min(max((1u << 18) / columns, 64u), 4096u); }
__device__ inline u32 model_words(u32 pivots, u32 columns) { return (2 + 2 * pivots + columns * (2 + pivots) + 3) / 4; }

// The model as arrays.
struct Model {
    short *head;
    u32 columns;
    __device__ u32 pivots() const { return (u32)head[0]; }
    __device__ u32 shift() const { return (u32)head[1]; }
    __device__ short &pivot(u32 t) const { return head[2 + t]; }
    __device__ short &bias(u32 c) const { return head[2 + MOST_PIVOTS + c]; }
    __device__ short &weight(u32 t, u32 c) const { return head[2 + MOST_PIVOTS + (1 + t) * columns + c]; }
    // How many pivots predict a column.
    __device__ u32 used(u32 c) const {
        for (u32 t = 0; t < pivots(); t++)
            if ((u32)pivot(t) == c) return t;
        return pivots();
    }
};

// Where a code stands among residuals: tile after tile, column after column.
struct Place {
    u32 tile, row, column, size;  // row in the tile, rows of the tile
    __device__ Place(u32 position, u32 columns, u32 distinct) {
        u32 rows = tile_rows(columns);
        tile = position / (rows * columns);
        u32 rest = position - tile * rows * columns;
        size = min(rows, distinct - tile * rows);
        column = rest / size;
        row = rest - column * size;
    }
    __device__ u32 distinct_row(u32 columns) const { return tile * tile_rows(columns) + row; }
};

// A column of a tile, from the number of its unit among those of the section.
struct Unit {
    u32 tile, column, size, base;  // rows of the tile, first residual
    bool some;
    __device__ Unit(u32 number, u32 columns, u32 distinct) {
        u32 rows = tile_rows(columns);
        tile = number / columns;
        column = number - tile * columns;
        some = (u64)tile * rows < distinct;
        size = some ? min(rows, distinct - tile * rows) : 0;
        base = tile * rows * columns + column * size;
    }
    __device__ u32 symbols(u32 paired) const { return paired ? (size + 1) / 2 : size; }
};

// The prediction of a column of a row whose pivots have these codes.
__device__ inline int predicted(const Model &model, u32 column, const int *pivot_codes) {
    int sum = (int)((u32)(int)model.bias(column) << (3 + model.shift())) + 16;
    u32 used = model.used(column);
    for (u32 t = 0; t < used; t++) sum += (int)model.weight(t, column) * pivot_codes[t];
    return sum >> 5;
}
// A code modulo 2^8 or 2^16, as signed.
__device__ inline int cut(int code, u32 width) { return width == 1 ? (int)(signed char)code : (int)(short)code; }

// Put `count` bits at most 32 into a stream of words that are 0 there.
__device__ inline void or_bits(u32 *words, u32 bit, u32 value, u32 count) {
    if (!count) return;
    u64 moved = (u64)value << (bit & 31);
    if ((u32)moved) atomicOr(&words[bit >> 5], (u32)moved);
    if (moved >> 32) atomicOr(&words[(bit >> 5) + 1], (u32)(moved >> 32));
}

// References: symbol of a value, and its lower bits.
__device__ inline u32 reference_symbol(u32 value) {
    if (value < 8) return value;
    u32 top = 31 - __clz(value);
    return 8 + 4 * (top - 3) + (value >> (top - 2) & 3);
}
__device__ inline u32 extra_bits(u32 symbol) { return symbol < 8 ? 0 : (symbol - 8) / 4 + 1; }
