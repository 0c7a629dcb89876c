// Lists of ids as payloads (docs/wire-format.md, "Payloads of ids", mode 16).
#pragma once
#include "packing.cuh"

const u32 GROUPS = 33, ID_HEADER = 3, WIDE = 0, NARROW = 1, PACKED = 2, CODED_IDS = 3, ASCENDING = 4, BASED = 8;
const u32 ID_MAGIC = 0x6469 | 1 << 16 | 16 << 24;

// A list of ids, and a payload of lists; `ids.py` has the same.
struct IdList {
    i64 first, count, message;
};
struct IdMessage {
    i64 first_list, lists, first_value;  // ids of a message lie one after the other
    i64 first_block;                     // of all messages' blocks of values
    u64 words;
};
// What becomes of a list.
struct ListState {
    i64 base;
    u32 mode, group, narrow, value, base_at, plain_at;  // value, in the message; words
};
// Of a message: values of each group, where these and their words begin.
struct IdState {
    u32 totals[GROUPS], values[GROUPS], blocks[GROUPS], words[GROUPS];
    u32 listed, directory, size, plain;
};

// The group of a block of values of a message, and the values of that block.
struct GroupBlock {
    u32 group, block, first, size;
    __device__ GroupBlock(const IdState &of, u32 number) {
        group = GROUPS - 1;
        while (group && of.blocks[group] > number) group--;
        block = number - of.blocks[group];
        u32 total = of.totals[group];
        size = (u64)block * BLOCK < total ? min(BLOCK, total - block * BLOCK) : 0;
        first = of.values[group] + block * BLOCK;
    }
};
