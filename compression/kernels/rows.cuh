// Rows of codes in working memory.
#pragma once
#include "common.cuh"

const float TOP_BYTE = 127.0f, TOP_TWO = 32767.0f;

// Bytes from one row to the next.
__device__ inline u32 stride_of(u32 columns, u32 width) {
    return columns == 1 ? width : (columns * width + 7) / 8 * 8;
}
__device__ inline int code_at(const Rows &rows, u32 width, u32 row, u32 column) {
    const u8 *start = (const u8 *)rows.codes + (u64)row * stride_of((u32)rows.columns, width);
    return width == 1 ? ((const signed char *)start)[column] : ((const short *)start)[column];
}
