// Blocks of up to 1024 values of 0 to 32 bits, a warp each (docs/wire-format.md, "Packed stream").
#pragma once
#include "common.cuh"

// Pack `count` values, `value(i)`, of `width` bits into `words`. The warp's lanes are the format's lanes.
template <class Value> __device__ inline void pack_block(const Value &value, u32 count, u32 width, u32 *words) {
    if (!width) return;
    u32 lane = lane_id();
    if (count == BLOCK) {
        u64 held = 0;
        u32 bits = 0, to = lane;
#pragma unroll 8
        for (u32 group = 0; group < 32; group++) {
            held |= (u64)value(group * 32 + lane) << bits;
            bits += width;
            if (bits >= 32) {
                words[to] = (u32)held;
                to += 32;
                held >>= 32;
                bits -= 32;
            }
        }
        return;
    }
    // A short block is one stream of bits. Each lane gathers whole words: a value on the edge of two is made twice.
    for (u32 k = lane; k < block_words(count, width); k += 32) {
        u32 i = 32 * k / width;
        i64 bit = (i64)i * width - 32 * (i64)k;  // of value i in this word
        u64 held = 0;
        for (; bit < 32 && i < count; i++, bit += width) {
            u64 one = value(i);
            held |= bit < 0 ? one >> -bit : one << bit;
        }
        words[k] = (u32)held;
    }
}

// Reverse it: call `take(i, value)` for each.
template <class Take> __device__ inline void unpack_block(const u32 *words, u32 count, u32 width, const Take &take) {
    u32 lane = lane_id(), mask = width == 32 ? ALL : (1u << width) - 1;
    if (!width) {
        for (u32 i = lane; i < count; i += 32) take(i, 0u);
        return;
    }
    if (count == BLOCK) {
        u64 held = 0;
        u32 bits = 0, from = lane;
#pragma unroll 8
        for (u32 group = 0; group < 32; group++) {
            if (bits < width) {
                held |= (u64)words[from] << bits;
                from += 32;
                bits += 32;
            }
            take(group * 32 + lane, (u32)held & mask);
            held >>= width;
            bits -= width;
        }
        return;
    }
    u32 size = block_words(count, width);
    for (u32 i = lane; i < count; i += 32) {
        u32 bit = i * width, k = bit >> 5;
        u64 pair = words[k] | (k + 1 < size ? (u64)words[k + 1] << 32 : 0);
        take(i, (u32)(pair >> (bit & 31)) & mask);
    }
}
