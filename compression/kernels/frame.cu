// The frame of payloads: where sections begin, header, descriptors, checksum; and all of it checked.
#include "common.cuh"

// Header and descriptors of each message, and its number of words. A CUDA block a message.
extern "C" __global__ void __launch_bounds__(256)
    write_frames(const Section *sections, State *states, const Message *messages, u32 *sizes) {
    __shared__ BlockScan scan;
    const Message &message = messages[blockIdx.x];
    u32 *words = (u32 *)message.words, count = (u32)message.sections, at = HEADER + DESCRIPTOR * count;
    for (u32 start = 0; start < count; start += THREADS) {
        u32 i = start + threadIdx.x;
        i64 number = message.first_section + i;
        u32 all, before = block_scan(scan, i < count ? states[number].words : 0, all);
        if (i < count) {
            const Section &s = sections[number];
            State &state = states[number];
            state.start = at + before;
            u32 *descriptor = words + HEADER + DESCRIPTOR * i;
            descriptor[0] = state.chain | (u32)s.dtype << 8;
            descriptor[1] = (u32)s.rows;
            descriptor[2] = (u32)s.columns;
            descriptor[3] = state.words;
            descriptor[4] = __float_as_uint(state.bound);
        }
        at += all;
    }
    if (threadIdx.x) return;
    words[0] = MAGIC, words[1] = VERSION, words[2] = count, words[3] = at, words[4] = 0;
    sizes[blockIdx.x] = at;
}

__device__ inline u32 sum_of_words(const u32 *words, u32 size) {
    u32 sum = 0;
    for (u32 i = blockIdx.x * THREADS + threadIdx.x; i < size; i += gridDim.x * THREADS)
        sum += mix(i == 4 ? 0 : words[i], i);
    return warp_sum(sum);
}

// The checksum of each message into its header. The grid has a row a message.
extern "C" __global__ void __launch_bounds__(256) write_checksums(const Message *messages, const u32 *sizes) {
    u32 *words = (u32 *)messages[blockIdx.y].words;
    u32 sum = sum_of_words(words, sizes[blockIdx.y]);
    if (lane_id() == 0) atomicAdd(&words[4], sum);
}

// What `sums`, 0 before, then lacks of the checksum that was sent: 0 if the message is sound.
extern "C" __global__ void __launch_bounds__(256) check_checksums(const Message *messages, u32 *sums) {
    const Message &message = messages[blockIdx.y];
    const u32 *words = (const u32 *)message.words;
    if (message.capacity < HEADER) return;  // `read_frames` refuses it
    u32 sum = sum_of_words(words, (u32)message.capacity);
    if (blockIdx.x == 0 && threadIdx.x == 0) sum -= words[4];
    if (lane_id() == 0) atomicAdd(&sums[blockIdx.y], sum);
}

// States of the sections of payloads that are to hold just these sections; a message that does not has a problem.
// `coded`: whether there is working memory for chain huffman.
// A CUDA block a message; `problems` are 0 before.
extern "C" __global__ void __launch_bounds__(256)
    read_frames(const Section *sections, State *states, const Message *messages, i64 coded, u32 *problems) {
    __shared__ BlockScan scan;
    const Message &message = messages[blockIdx.x];
    const u32 *words = (const u32 *)message.words;
    u32 size = (u32)message.capacity, count = (u32)message.sections, at = HEADER + DESCRIPTOR * count;
    bool sound = size >= at && words[0] == MAGIC && words[1] == VERSION && words[2] == count && words[3] == size;
    bool good = true;
    for (u32 start = 0; start < count; start += THREADS) {
        u32 i = start + threadIdx.x;
        i64 number = message.first_section + i;
        State state = {1.0f, 1.0f, 0.0f, 0.0f, 0.0f, RAW, 0, 0, 0, 0, 0, 0, 0, 0};
        if (i < count && sound) {
            const Section &s = sections[number];
            const u32 *descriptor = words + HEADER + DESCRIPTOR * i;
            u32 raw = raw_words(s);
            state.chain = descriptor[0] & 0xFF;
            state.words = descriptor[3];
            state.bound = __uint_as_float(descriptor[4]);
            bool lossy = state.chain == BITPACK || state.chain == DEDUP || state.chain == HUFFMAN;
            u32 needs = state.chain == DEDUP && s.work < 0 ? NEEDS_ROWS : state.chain == HUFFMAN && !coded ? NEEDS_CODED : 0;
            if (needs) atomicOr(&problems[blockIdx.x], needs);  // memory that has not been given
            good = good && !needs && (state.chain != HUFFMAN || s.work >= 0);
            bool bounded = state.bound >= 3.944304526105059e-31f && state.bound <= 1.329227995784916e36f;
            good = good && descriptor[0] >> 8 == s.dtype && descriptor[1] == s.rows && descriptor[2] == s.columns &&
                   state.words <= raw && (lossy ? bounded : state.chain == RAW && state.bound == 0 && state.words == raw);
            if (lossy) state.step = (float)__dmul_rn(__dmul_rn(2.0, (double)state.bound), 1 - 1.0 / 16384);
        }
        // Sizes are at most `raw_words`, or the message is refused: their sum is then no more than the capacity allows.
        u32 all, before = block_scan(scan, i < count && good ? state.words : 0, all);
        state.start = at + before;
        good = good && (u64)at + before + state.words <= size;
        if (i < count) states[number] = state;
        at += all;
    }
    if (!sound || !good || (threadIdx.x == 0 && at != size)) atomicOr(&problems[blockIdx.x], (u32)BAD_FRAME);
}
