// Payloads of lists of ids back to ids, of groups that are bit-packed. A payload that does not hold together, or has a
// coded group, is not looked at further.
#include "ids.cuh"

const u32 BAD_IDS = 1;

struct TakeValue {
    u32 *to;
    __device__ void operator()(u32 i, u32 value) const { to[i] = value; }
};

// Offsets of the blocks of n packed values in words[at : end], in widths and words; where they end, or 0. A warp.
__device__ inline u32 find_packed(const u32 *words, u32 at, u32 end, u32 n, u32 *widths, u32 *offsets) {
    u32 blocks = blocks_of(n), begin = at;
    if (ceil_div(blocks, 4) > end - at) return 0;
    at += ceil_div(blocks, 4);
    for (u32 start = 0; start < blocks; start += 32) {
        u32 block = start + lane_id(), size = 0, width = 0;
        if (block < blocks) {
            width = words[begin + block / 4] >> 8 * (block % 4) & 0xFF;
            size = block_words(min(BLOCK, n - block * BLOCK), min(width, 32u));
            widths[block] = width;
        }
        u32 sum = warp_scan(size);
        if (block < blocks) offsets[block] = at + sum - size;
        u32 all = __shfl_sync(ALL, sum, 31);
        if (__ballot_sync(ALL, width > 32) || all > end - at) return 0;
        at += all;
    }
    return at;
}

// Header, counts and tags of each message, and where its parts begin. A CUDA block a message, of which the first warp
// works; `capacity`: words of each payload; `listed`, `widths`, `offsets`: u32 [2 * lists] of each message.
extern "C" __global__ void __launch_bounds__(256, 4) read_id_heads(
    const IdMessage *messages, const i64 *capacity, ListState *all_states, IdState *found, u32 *all_listed,
    u32 *all_widths, u32 *all_offsets, i64 *totals, u32 *problems) {
    if (threadIdx.x >= 32) return;
    const IdMessage &message = messages[blockIdx.x];
    IdState &of = found[blockIdx.x];
    const u32 *words = (const u32 *)message.words;
    u32 size = (u32)capacity[blockIdx.x], count = (u32)message.lists, n = 2 * count, at = 0;
    u32 *listed = all_listed + 2 * message.first_list, *widths = all_widths + 2 * message.first_list;
    u32 *offsets = all_offsets + 2 * message.first_list;
    bool good = size >= 4 && words[0] == ID_MAGIC && words[1] == count && words[2] == size;
    if (good) at = find_packed(words, ID_HEADER, size - 1, n, widths, offsets);
    __syncwarp();
    for (u32 block = 0; at && block < blocks_of(n); block++)
        unpack_block(words + offsets[block], min(BLOCK, n - block * BLOCK), widths[block], TakeValue{listed + block * BLOCK});
    __syncwarp();
    if (lane_id()) return;
    good = good && at;
    ListState *states = all_states + message.first_list;
    u64 end = at, all = 0;
    for (u32 g = 0; g < GROUPS; g++) of.totals[g] = 0;
    for (u32 i = 0; i < count && good; i++) {
        u32 tag = listed[count + i], coder = tag & 3, group = tag >> 4;
        good = coder != CODED_IDS && (coder >= PACKED || tag == coder) && group < GROUPS && all + listed[i] < 1u << 31;
        all += listed[i];
        states[i].mode = tag & 15;
        states[i].group = group;
        if (coder == PACKED && good) {
            states[i].value = of.totals[group];
            of.totals[group] += listed[i];
            states[i].base_at = (u32)end;
            end += tag & BASED ? 2 : 0;
        }
    }
    for (u32 i = 0; i < count && good; i++) {
        states[i].plain_at = (u32)end;
        if (states[i].mode < PACKED) end += (u64)listed[i] * (states[i].mode == WIDE ? 2 : 1);
        good = end < size;
    }
    u64 directory = end;
    u32 value = 0, block = 0;
    for (u32 g = 0; g < GROUPS && good; g++) {
        end += of.totals[g] != 0;
        of.values[g] = value;
        of.blocks[g] = block;
        value += of.totals[g];
        block += blocks_of(of.totals[g]);
    }
    good = good && end < size;
    for (u32 g = 0; g < GROUPS && good; g++) {
        of.words[g] = (u32)end;
        if (!of.totals[g]) continue;
        u32 entry = words[directory++];
        good = entry % 2 == 0 && of.totals[g] <= (u64)(entry / 2) * 4 * BLOCK;
        end += entry / 2;
        good = good && end < size;
    }
    good = good && end + 1 == size;
    for (u32 i = 0; i < count && good; i++)
        if (states[i].mode >= PACKED) states[i].value += of.values[states[i].group];
    of.size = (u32)end;
    totals[blockIdx.x] = good ? (i64)all : 0;
    if (!good) atomicOr(&problems[blockIdx.x], BAD_IDS);
}

// What the sum of the words lacks of the checksum, the last word. The grid has a row a message; `sums` are 0 before.
extern "C" __global__ void __launch_bounds__(256)
    check_id_checksums(const IdMessage *messages, const i64 *capacity, u32 *sums) {
    const u32 *words = (const u32 *)messages[blockIdx.y].words;
    u32 size = (u32)capacity[blockIdx.y], sum = 0;
    for (u32 i = blockIdx.x * THREADS + threadIdx.x; i < size; i += gridDim.x * THREADS)
        sum += i + 1 < size ? mix(words[i], i) : 0u - words[i];
    sum = warp_sum(sum);
    if (lane_id() == 0) atomicAdd(&sums[blockIdx.y], sum);
}

// Blocks of the groups of each message. A CUDA block a message, of which the first warp works.
extern "C" __global__ void __launch_bounds__(256)
    find_groups(const IdMessage *messages, const IdState *found, u32 *widths, u32 *offsets, u32 *problems) {
    if (threadIdx.x >= 32 || problems[blockIdx.x]) return;
    const IdMessage &message = messages[blockIdx.x];
    const IdState &of = found[blockIdx.x];
    bool good = true;
    for (u32 g = 0; g < GROUPS && good; g++) {
        u32 end = g + 1 < GROUPS ? of.words[g + 1] : of.size;
        i64 at = message.first_block + of.blocks[g];
        if (of.totals[g])
            good = find_packed((const u32 *)message.words, of.words[g], end, of.totals[g], widths + at, offsets + at) == end;
    }
    if (!good && lane_id() == 0) atomicOr(&problems[blockIdx.x], BAD_IDS);
}

// Values of the groups. A warp a block of values.
extern "C" __global__ void __launch_bounds__(256) read_groups(
    const IdMessage *messages, const u32 *owners, i64 blocks, const IdState *found, const u32 *widths,
    const u32 *offsets, const u32 *problems, u32 *values) {
    i64 at = ((i64)blockIdx.x * THREADS + threadIdx.x) / 32;
    if (at >= blocks || problems[owners[at]]) return;
    const IdMessage &message = messages[owners[at]];
    GroupBlock mine(found[owners[at]], (u32)(at - message.first_block));
    if (!mine.size) return;
    TakeValue take = {values + message.first_value + mine.first};
    unpack_block((const u32 *)message.words + offsets[at], mine.size, widths[at], take);
}

// The ids of each list. A warp a list.
extern "C" __global__ void __launch_bounds__(256) read_lists(
    const IdMessage *messages, const IdList *lists, i64 count, const ListState *states, const u32 *values, i64 *ids,
    u32 *problems) {
    i64 number = ((i64)blockIdx.x * THREADS + threadIdx.x) / 32;
    if (number >= count) return;
    const IdList &list = lists[number];
    const ListState &state = states[number];
    const IdMessage &message = messages[list.message];
    if (problems[list.message]) return;
    const u32 *words = (const u32 *)message.words;
    i64 *to = ids + list.first;
    if (state.mode < PACKED) {
        for (i64 i = lane_id(); i < list.count; i += 32) {
            const u32 *from = words + state.plain_at + i * (state.mode == WIDE ? 2 : 1);
            to[i] = state.mode == WIDE ? (i64)(from[0] | (u64)from[1] << 32) : (i64)(int)from[0];
        }
        return;
    }
    u64 base = state.mode & BASED ? words[state.base_at] | (u64)words[state.base_at + 1] << 32 : 0;
    const u32 *own = values + message.first_value + state.value;
    bool good = true;
    u64 before = base - 1;
    for (i64 start = 0; start < list.count; start += 32) {
        i64 i = start + lane_id();
        u64 step = i < list.count ? own[i] : 0, here = base + step;
        if (state.mode & ASCENDING) {
            step += 1;
            u64 sum = step;
            for (u32 distance = 1; distance < 32; distance <<= 1) {
                u64 other = __shfl_up_sync(ALL, sum, distance);
                if (lane_id() >= distance) sum += other;
            }
            here = before + sum;
            if (i < list.count && i) good = good && (i64)here > (i64)(here - step);
            before = __shfl_sync(ALL, here, 31);
        }
        if (i < list.count) {
            if (!(state.mode & ASCENDING) || !i) good = good && (i64)here >= (i64)base;
            to[i] = (i64)here;
        }
    }
    if (__ballot_sync(ALL, !good) && lane_id() == 0) atomicOr(&problems[list.message], BAD_IDS);
}
