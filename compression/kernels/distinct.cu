// The distinct ids of each shard, ascending, and where the id of each lookup is among them: a bit for each row.
#include "common.cuh"

// A shard: its rows, and its first word of 32 rows among those of all shards. `records.py` has the same.
struct Shard {
    i64 rows, first_word;
};

// The shard of a lookup: lookups of shard s are from ends[s] up to ends[s + 1].
__device__ inline u32 shard_of(const i64 *ends, u32 shards, i64 lookup) {
    u32 low = 0, high = shards;
    while (high - low > 1) {
        u32 middle = (low + high) / 2;
        if (ends[middle] <= lookup) low = middle;
        else high = middle;
    }
    return low;
}

// Set the bit of each id; `bad`, 0 before, gets ALL - the first lookup whose id is no row. A thread a lookup.
extern "C" __global__ void __launch_bounds__(256) mark_ids(
    const i64 *ids, i64 n, const i64 *ends, const Shard *shards, i64 count, u32 *bits, u32 *bad) {
    i64 i = (i64)blockIdx.x * THREADS + threadIdx.x;
    if (i >= n) return;
    Shard shard = shards[shard_of(ends, (u32)count, i)];
    i64 id = ids[i];
    if (id < 0 || id >= shard.rows) atomicMax(bad, ALL - (u32)i);
    else atomicOr(&bits[shard.first_word + (id >> 5)], 1u << (id & 31));
}

// Rows of each word, and 0 behind the last one, where the sums of those before then have the sum of all. A thread a word.
extern "C" __global__ void __launch_bounds__(256) count_bits(const u32 *bits, i64 words, u32 *ranks) {
    i64 i = (i64)blockIdx.x * THREADS + threadIdx.x;
    if (i <= words) ranks[i] = i < words ? __popc(bits[i]) : 0;
}

// The ids of all shards, one right after the other, and how many each has; `ranks` are sums of the words before. A
// thread a word; the last ones of the grid are of shards.
extern "C" __global__ void __launch_bounds__(256) list_ids(
    const u32 *bits, i64 words, const Shard *shards, i64 count, const u32 *ranks, i64 *ids, i64 *counts) {
    i64 i = (i64)blockIdx.x * THREADS + threadIdx.x;
    if (i >= words) {
        i64 shard = i - words, next = shard + 1 < count ? shards[shard + 1].first_word : words;
        if (shard < count) counts[shard] = ranks[next] - ranks[shards[shard].first_word];
        return;
    }
    u32 held = bits[i], at = ranks[i];
    if (!held) return;
    u32 low = 0, high = (u32)count;  // the shard of the word: the last one that begins at it or before, and has rows
    while (high - low > 1) {
        u32 middle = (low + high) / 2;
        if (shards[middle].first_word <= i) low = middle;
        else high = middle;
    }
    for (; held; held &= held - 1) ids[at++] = (i - shards[low].first_word) * 32 + __popc((held & (0u - held)) - 1);
}

// Where the id of each lookup is among those of its shard, and among all. A thread a lookup.
extern "C" __global__ void __launch_bounds__(256) invert_ids(
    const i64 *ids, i64 n, const i64 *ends, const Shard *shards, i64 count, const u32 *bits, const u32 *ranks,
    const u32 *bad, int *inverse, u32 *places) {
    i64 i = (i64)blockIdx.x * THREADS + threadIdx.x;
    if (i >= n || *bad) return;
    Shard shard = shards[shard_of(ends, (u32)count, i)];
    i64 word = shard.first_word + (ids[i] >> 5);
    u32 place = ranks[word] + __popc(bits[word] & ((1u << (ids[i] & 31)) - 1));
    places[i] = place;
    inverse[i] = (int)(place - ranks[shard.first_word]);
}
