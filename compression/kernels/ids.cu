// Lists of ids as payloads (docs/wire-format.md, "Payloads of ids", mode 16), bit-packed always, as `encode_id_lists`
// makes them with `fast`.
#include "ids.cuh"

__device__ inline u32 bits_of_64(u64 value) { return 64 - __clzll(value); }
__device__ inline u64 or_64(u64 value) {
    for (int step = 16; step; step >>= 1) value |= __shfl_xor_sync(ALL, value, step);
    return value;
}
__device__ inline i64 max_64(i64 value) {
    for (int step = 16; step; step >>= 1) value = max(value, __shfl_xor_sync(ALL, value, step));
    return value;
}

// How each list becomes values. A warp a list.
extern "C" __global__ void __launch_bounds__(256)
    plan_lists(const i64 *ids, const IdList *lists, i64 count, ListState *states) {
    i64 number = ((i64)blockIdx.x * THREADS + threadIdx.x) / 32;
    if (number >= count) return;
    const i64 *own = ids + lists[number].first;
    i64 n = lists[number].count, low = 0, high = 0;
    u64 gaps = 0, falls = 0;
    if (n) low = high = own[0];
    for (i64 i = lane_id(); i < n; i += 32) {
        i64 here = own[i];
        low = min(low, here);
        high = max(high, here);
        if (!i) continue;
        falls |= here <= own[i - 1];
        gaps |= (u64)here - (u64)own[i - 1] - 1;
    }
    gaps = or_64(gaps);
    falls = or_64(falls);
    high = max_64(high);
    low = ~max_64(~low);
    if (lane_id()) return;
    ListState state = {0, PACKED, 0, low >= -0x80000000ll && high <= 0x7FFFFFFFll, 0, 0, 0};
    u64 span = (u64)high - (u64)low, largest = falls ? span : gaps;
    if (n && bits_of_64(largest) > 32) {
        state.mode = WIDE;
    } else if (n) {
        i64 first = falls ? high : low, wider = (i64)bits_of_64((u64)first) - bits_of_64(largest);
        bool based = low < 0 || first >> 32 != 0 || max(wider, 0ll) * min(n, (i64)BLOCK) > 64;
        double mean = __ddiv_rn((double)span, falls ? 2.0 : (double)max(n - 1, 1ll));
        u32 bits = bits_of_64((u64)__dmul_rn(1.5, mean));
        state.mode = PACKED | (falls ? 0 : ASCENDING) | (based ? BASED : 0);
        state.base = based ? low : 0;
        state.group = min(bits ? bits - 1 : 0, GROUPS - 1);
    }
    states[number] = state;
}

// Where the values of each list go, group by group. A CUDA block a message, of which one thread works: lists are few.
extern "C" __global__ void __launch_bounds__(256)
    place_values(const IdMessage *messages, const IdList *lists, ListState *states, IdState *found) {
    const IdMessage &message = messages[blockIdx.x];
    IdState &of = found[blockIdx.x];
    if (threadIdx.x) return;
    for (u32 g = 0; g < GROUPS; g++) of.totals[g] = 0;
    for (i64 i = message.first_list; i < message.first_list + message.lists; i++)
        if (states[i].mode >= PACKED) of.totals[states[i].group] += (u32)lists[i].count;
    u32 value = 0, block = 0;
    for (u32 g = 0; g < GROUPS; g++) {
        of.values[g] = value;
        of.blocks[g] = block;
        value += of.totals[g];
        block += blocks_of(of.totals[g]);
        of.totals[g] = 0;
    }
    for (i64 i = message.first_list; i < message.first_list + message.lists; i++) {
        ListState &state = states[i];
        if (state.mode < PACKED) continue;
        state.value = of.values[state.group] + of.totals[state.group];
        of.totals[state.group] += (u32)lists[i].count;
    }
}

// Values of the lists that have some. A warp a list.
extern "C" __global__ void __launch_bounds__(256) make_values(
    const i64 *ids, const IdMessage *messages, const IdList *lists, i64 count, const ListState *states, u32 *values) {
    i64 number = ((i64)blockIdx.x * THREADS + threadIdx.x) / 32;
    if (number >= count || states[number].mode < PACKED) return;
    const IdList &list = lists[number];
    const ListState &state = states[number];
    const i64 *own = ids + list.first;
    u32 *to = values + messages[list.message].first_value + state.value;
    for (i64 i = lane_id(); i < list.count; i += 32) {
        bool gap = state.mode & ASCENDING && i;
        to[i] = gap ? (u32)((u64)own[i] - (u64)own[i - 1] - 1) : (u32)((u64)own[i] - (u64)state.base);
    }
}

struct Given {
    const u32 *values;
    __device__ u32 operator()(u32 i) const { return values[i]; }
};

// Widths of the blocks of all groups. A warp a block.
extern "C" __global__ void __launch_bounds__(256) measure_groups(
    const IdMessage *messages, const u32 *owners, i64 blocks, const IdState *found, const u32 *values, u32 *widths) {
    i64 at = ((i64)blockIdx.x * THREADS + threadIdx.x) / 32;
    if (at >= blocks) return;
    const IdMessage &message = messages[owners[at]];
    GroupBlock mine(found[owners[at]], (u32)(at - message.first_block));
    const u32 *own = values + message.first_value + mine.first;
    u32 seen = 0;
    for (u32 i = lane_id(); i < mine.size; i += 32) seen |= own[i];
    seen = warp_or(seen);
    if (lane_id() == 0) widths[at] = bits_of(seen);
}

// Counts, then tags, of the lists of a message.
struct Listed {
    const IdList *lists;
    const ListState *states;
    u32 count, plain;
    __device__ u32 operator()(u32 i) const {
        if (i < count) return (u32)lists[i].count;
        const ListState &state = states[i - count];
        if (plain) return state.narrow ? NARROW : WIDE;
        return state.mode < PACKED ? state.mode : state.mode | state.group << 4;
    }
};
struct Shifted {
    const Listed &listed;
    u32 first;
    __device__ u32 operator()(u32 i) const { return listed(first + i); }
};

// Pack counts and tags into `words`, or only measure them if that is 0; their words. A warp calls it.
__device__ inline u32 pack_listed(const Listed &listed, u32 *words) {
    u32 n = 2 * listed.count, at = ceil_div(blocks_of(n), 4), widths = 0;
    for (u32 block = 0; block < blocks_of(n); block++) {
        u32 size = min(BLOCK, n - block * BLOCK), seen = 0;
        for (u32 i = lane_id(); i < size; i += 32) seen |= listed(block * BLOCK + i);
        u32 width = bits_of(warp_or(seen));
        if (words) {
            pack_block(Shifted{listed, block * BLOCK}, size, width, words + at);
            widths |= width << 8 * (block % 4);
            if (lane_id() == 0) words[block / 4] = widths;
            if (block % 4 == 3) widths = 0;
        }
        at += block_words(size, width);
    }
    return at;
}

// Where all parts of a message begin; ids as they are if packing does not make it smaller. A CUDA block a message, of
// which the first warp works.
extern "C" __global__ void __launch_bounds__(256) place_lists(
    const IdMessage *messages, const IdList *all_lists, ListState *all_states, IdState *found, const u32 *widths,
    u32 *offsets, u32 *sizes) {
    if (threadIdx.x >= 32) return;
    const IdMessage &message = messages[blockIdx.x];
    const IdList *lists = all_lists + message.first_list;
    ListState *states = all_states + message.first_list;
    IdState &of = found[blockIdx.x];
    u32 count = (u32)message.lists, raw = 0;
    for (u32 plain = 0; plain < 2; plain++) {
        u32 listed = pack_listed(Listed{lists, states, count, plain}, 0), at = ID_HEADER + listed;
        raw = 0;
        if (lane_id() == 0)
            for (u32 i = 0; i < count; i++) {
                raw += 2 * (u32)lists[i].count;
                states[i].base_at = at;
                at += !plain && states[i].mode & BASED ? 2 : 0;
            }
        if (lane_id() == 0)
            for (u32 i = 0; i < count; i++) {
                u32 mode = plain ? (states[i].narrow ? NARROW : WIDE) : states[i].mode;
                states[i].plain_at = at;
                at += mode >= PACKED ? 0 : (u32)lists[i].count * (mode == WIDE ? 2 : 1);
            }
        at = __shfl_sync(ALL, at, 0);
        raw = __shfl_sync(ALL, raw, 0);
        u32 directory = at;
        for (u32 g = 0; g < GROUPS && !plain; g++) at += of.totals[g] != 0;
        for (u32 g = 0; g < GROUPS && !plain; g++) {
            u32 begin = at, blocks = blocks_of(of.totals[g]);
            if (lane_id() == 0) of.words[g] = begin;
            at += ceil_div(blocks, 4);
            for (u32 start = 0; start < blocks; start += 32) {
                u32 block = start + lane_id(), size = 0;
                i64 place = message.first_block + of.blocks[g] + block;
                if (block < blocks) size = block_words(min(BLOCK, of.totals[g] - block * BLOCK), widths[place]);
                u32 sum = warp_scan(size);
                if (block < blocks) offsets[place] = at + sum - size;
                at += __shfl_sync(ALL, sum, 31);
            }
        }
        if (lane_id() == 0) {
            of.listed = listed;
            of.directory = directory;
            of.size = at;
            of.plain = plain;
        }
        if (at <= ID_HEADER + raw + 3 + 9 * count / 4) break;
    }
    if (lane_id()) return;
    sizes[blockIdx.x] = of.size + 1;
    u32 *words = (u32 *)message.words;
    words[0] = ID_MAGIC, words[1] = count, words[2] = of.size + 1, words[of.size] = 0;
}

// Counts and tags, and the directory. A CUDA block a message, of which the first warp works.
extern "C" __global__ void __launch_bounds__(256, 4)
    write_listed(const IdMessage *messages, const IdList *lists, const ListState *states, const IdState *found) {
    if (threadIdx.x >= 32) return;
    const IdMessage &message = messages[blockIdx.x];
    const IdState &of = found[blockIdx.x];
    u32 *words = (u32 *)message.words, at = of.directory;
    pack_listed(
        Listed{lists + message.first_list, states + message.first_list, (u32)message.lists, of.plain}, words + ID_HEADER);
    if (lane_id() || of.plain) return;
    for (u32 g = 0; g < GROUPS; g++)
        if (of.totals[g]) words[at++] = 2 * ((g + 1 < GROUPS ? of.words[g + 1] : of.size) - of.words[g]);
}

// Bases, and ids that are as they are. A warp a list.
extern "C" __global__ void __launch_bounds__(256) write_plain(
    const i64 *ids, const IdMessage *messages, const IdList *lists, i64 count, const ListState *states,
    const IdState *found) {
    i64 number = ((i64)blockIdx.x * THREADS + threadIdx.x) / 32;
    if (number >= count) return;
    const IdList &list = lists[number];
    const ListState &state = states[number];
    u32 *words = (u32 *)messages[list.message].words;
    bool plain = found[list.message].plain;
    u32 mode = plain ? (state.narrow ? NARROW : WIDE) : state.mode;
    if (lane_id() == 0 && !plain && mode & BASED) {
        words[state.base_at] = (u32)state.base;
        words[state.base_at + 1] = (u32)((u64)state.base >> 32);
    }
    if (mode >= PACKED) return;
    for (i64 i = lane_id(); i < list.count; i += 32) {
        u64 id = (u64)ids[list.first + i];
        u32 *to = words + state.plain_at + i * (mode == WIDE ? 2 : 1);
        to[0] = (u32)id;
        if (mode == WIDE) to[1] = (u32)(id >> 32);
    }
}

// The groups. A warp a block of values.
extern "C" __global__ void __launch_bounds__(256) write_groups(
    const IdMessage *messages, const u32 *owners, i64 blocks, const IdState *found, const u32 *values,
    const u32 *widths, const u32 *offsets) {
    i64 at = ((i64)blockIdx.x * THREADS + threadIdx.x) / 32;
    if (at >= blocks) return;
    const IdMessage &message = messages[owners[at]];
    const IdState &of = found[owners[at]];
    if (of.plain) return;
    GroupBlock mine(of, (u32)(at - message.first_block));
    if (!mine.size) return;
    u32 *words = (u32 *)message.words;
    pack_block(Given{values + message.first_value + mine.first}, mine.size, widths[at], words + offsets[at]);
    if (lane_id() || mine.block % 4) return;
    u32 four = 0, all = blocks_of(of.totals[mine.group]);
    for (u32 i = 0; i < min(4u, all - mine.block); i++) four |= widths[at + i] << 8 * i;
    words[of.words[mine.group] + mine.block / 4] = four;
}

// The checksum of each message, its last word. The grid has a row a message.
extern "C" __global__ void __launch_bounds__(256) write_id_checksums(const IdMessage *messages, const u32 *sizes) {
    u32 *words = (u32 *)messages[blockIdx.y].words, size = sizes[blockIdx.y] - 1, sum = 0;
    for (u32 i = blockIdx.x * THREADS + threadIdx.x; i < size; i += gridDim.x * THREADS) sum += mix(words[i], i);
    sum = warp_sum(sum);
    if (lane_id() == 0) atomicAdd(&words[size], sum);
}
