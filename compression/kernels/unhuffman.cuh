// What reads the words of sections of chain huffman.
#pragma once
#include "coded.cuh"

// Sections of chain huffman that are sound so far.
__device__ inline bool is_sound(const State &state, u32 problem) { return state.chain == HUFFMAN && !problem; }

__device__ inline u32 half_at(const u32 *words, u32 start, u32 i) { return words[start + i / 2] >> 16 * (i % 2) & 0xFFFF; }
__device__ inline u32 byte_at(const u32 *words, u32 start, u32 i) { return words[start + i / 4] >> 8 * (i % 4) & 0xFF; }
// The 32 bits of a stream from `bit` on; 0 behind word `end`.
__device__ inline u32 bits_at(const u32 *words, u32 bit, u32 end) {
    u32 at = bit >> 5;
    u64 low = at < end ? words[at] : 0, high = at + 1 < end ? words[at + 1] : 0;
    return (u32)((low | high << 32) >> (bit & 31));
}
