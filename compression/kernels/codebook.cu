// References to distinct rows as Huffman symbols and lower bits: counts, codes and places. (docs/wire-format.md,
// "References", "Huffman message".)
#include "coded.cuh"

// The reference of a row: 0 where it is first seen, else 1 + the number of its distinct row.
__device__ inline u32 reference_of(const Rows &rows, u32 row) {
    u32 number = ((const u32 *)rows.numbers)[row];
    return ((const u32 *)rows.firsts)[number] == row ? 0 : number + 1;
}

// A chunk of THREADS rows of a section that has fewer distinct rows than rows. The same for all threads of a block.
struct Chunk {
    const Coded *coded;
    const Rows *rows;
    const State *state;
    u32 number, row;
    __device__ bool find(const Coded *all_coded, const Rows *all_rows, const i64 *coded_of, const u32 *row_owners,
                         const State *states) {
        u32 owner = row_owners[blockIdx.x];
        rows = all_rows + owner;
        state = states + rows->section;
        number = (u32)(blockIdx.x - rows->first_chunk);
        row = number * THREADS + threadIdx.x;
        if (coded_of[owner] < 0 || !state->width || state->distinct == rows->rows) return false;
        coded = all_coded + coded_of[owner];
        return true;
    }
};

// Symbols of references, how often each is used, and lower bits of each chunk.
extern "C" __global__ void __launch_bounds__(256) count_references(
    const Coded *all_coded, const Rows *all_rows, const i64 *coded_of, const u32 *row_owners, const State *states) {
    __shared__ BlockScan scan;
    __shared__ u32 counts[128];
    Chunk mine;
    if (!mine.find(all_coded, all_rows, coded_of, row_owners, states)) return;
    if (threadIdx.x < 128) counts[threadIdx.x] = 0;
    __syncthreads();
    u32 extra = 0, all;
    if (mine.row < mine.rows->rows) {
        u32 symbol = reference_symbol(reference_of(*mine.rows, mine.row));
        ((u8 *)mine.coded->reference_symbols)[mine.row] = (u8)symbol;
        atomicAdd(&counts[symbol], 1u);
        extra = extra_bits(symbol);
    }
    block_scan(scan, extra, all);
    if (threadIdx.x == 0) ((u32 *)mine.coded->reference_extra)[mine.number] = all;
    if (threadIdx.x < 128 && counts[threadIdx.x])
        atomicAdd(&((u32 *)mine.coded->histogram)[threadIdx.x], counts[threadIdx.x]);
}

// Lengths of the codes of `used` >= 2 symbols in the order of (count, symbol). One thread; all arrays are shared.
struct Tree {
    u32 leaf[129], node[129], leaf_parent[128], node_parent[128], depth[128], at_depth[LONGEST + 1], order[128];
    u32 length[128], number[16], following[16];
};
__device__ inline void find_lengths(Tree &tree, u32 used) {
    u32 i = 0, j = 0;
    for (u32 k = 0; k < used; k++) tree.node[k] = ALL;
    tree.leaf[used] = ALL;
    for (u32 made = 0; made + 1 < used; made++) {
        u32 weight = 0;
        for (u32 two = 0; two < 2; two++) {
            if (tree.leaf[i] <= tree.node[j]) {
                weight += tree.leaf[i];
                tree.leaf_parent[i++] = made;
            } else {
                weight += tree.node[j];
                tree.node_parent[j++] = made;
            }
        }
        tree.node[made] = weight;
    }
    tree.depth[used - 2] = 0;
    for (int k = (int)used - 3; k >= 0; k--) tree.depth[k] = tree.depth[tree.node_parent[k]] + 1;
    for (u32 d = 0; d <= LONGEST; d++) tree.at_depth[d] = 0;
    for (u32 k = 0; k < used; k++) tree.at_depth[min(tree.depth[tree.leaf_parent[k]] + 1, LONGEST)]++;
    u32 full = 0;
    for (u32 d = 1; d <= LONGEST; d++) full += tree.at_depth[d] << (LONGEST - d);
    for (; full > 1u << LONGEST; full--) {
        u32 d = LONGEST - 1;
        while (!tree.at_depth[d]) d--;
        tree.at_depth[d]--;
        tree.at_depth[d + 1] += 2;
        tree.at_depth[LONGEST]--;
    }
    for (u32 length = LONGEST, k = 0; length; length--)
        for (u32 some = tree.at_depth[length]; some; some--) tree.length[tree.order[k++]] = length;
}

// Codes of the references of each section. A CUDA block a `Coded`.
extern "C" __global__ void __launch_bounds__(256) make_codebooks(
    const Coded *all_coded, CodedState *coded_states, const Rows *all_rows, const State *states) {
    __shared__ Tree tree;
    __shared__ u32 counts[128], used;
    const Coded &coded = all_coded[blockIdx.x];
    const Rows &rows = all_rows[coded.rows];
    const State &state = states[rows.section];
    if (!state.width || state.distinct == rows.rows) return;
    u32 s = threadIdx.x;
    if (s == 0) used = 0;
    if (s < 128) {
        counts[s] = ((const u32 *)coded.histogram)[s];
        tree.length[s] = 0;
    }
    __syncthreads();
    if (s < 128 && counts[s]) {
        u32 place = 0;
        for (u32 t = 0; t < 128; t++) place += counts[t] && (counts[t] < counts[s] || (counts[t] == counts[s] && t < s));
        tree.order[place] = s;
        tree.leaf[place] = counts[s];
        atomicAdd(&used, 1u);
    }
    __syncthreads();
    if (s == 0) {
        u32 last = 0;
        for (u32 t = 0; t < 128; t++)
            if (counts[t]) last = t;
        coded_states[blockIdx.x].used = used;
        coded_states[blockIdx.x].last = last;
        if (used > 1) find_lengths(tree, used);
        for (u32 length = 0; length < 16; length++) tree.number[length] = tree.following[length] = 0;
        for (u32 t = 0; t <= last; t++) tree.number[tree.length[t]]++;
        tree.number[0] = 0;
        for (u32 length = 2; length <= LONGEST; length++)
            tree.following[length] = (tree.following[length - 1] + tree.number[length - 1]) << 1;
    }
    __syncthreads();
    if (s >= 128) return;
    u32 length = tree.length[s], code = tree.following[length];
    for (u32 t = 0; t < s; t++) code += tree.length[t] == length;
    ((u32 *)coded.codebook)[s] = length ? __brev(code) >> (32 - length) << 8 | length : 0;
}

// Bits of the symbols of each chunk of rows.
extern "C" __global__ void __launch_bounds__(256) measure_references(
    const Coded *all_coded, const Rows *all_rows, const i64 *coded_of, const u32 *row_owners, const State *states) {
    __shared__ BlockScan scan;
    Chunk mine;
    if (!mine.find(all_coded, all_rows, coded_of, row_owners, states)) return;
    u32 bits = 0, all;
    if (mine.row < mine.rows->rows)
        bits = ((const u32 *)mine.coded->codebook)[((const u8 *)mine.coded->reference_symbols)[mine.row]] & 0xFF;
    block_scan(scan, bits, all);
    if (threadIdx.x == 0) ((u32 *)mine.coded->reference_bits)[mine.number] = all;
}

// Symbols and lower bits of each chunk of rows, at their places in the section, which is 0 there.
extern "C" __global__ void __launch_bounds__(256) write_references(
    const Coded *all_coded, const CodedState *coded_states, const Section *sections, const Message *messages,
    const Rows *all_rows, const i64 *coded_of, const u32 *row_owners, const State *states) {
    __shared__ BlockScan scan;
    Chunk mine;
    if (!mine.find(all_coded, all_rows, coded_of, row_owners, states) || mine.state->chain != HUFFMAN) return;
    const Coded &coded = *mine.coded;
    const CodedState &found = coded_states[coded_of[row_owners[blockIdx.x]]];
    u32 *words = (u32 *)messages[sections[mine.rows->section].message].words + mine.state->start + CODED_HEADER;
    bool some = mine.row < mine.rows->rows;
    u32 symbol = some ? ((const u8 *)coded.reference_symbols)[mine.row] : 0, all;
    u32 code = some && found.used > 1 ? ((const u32 *)coded.codebook)[symbol] : 0, extra = some ? extra_bits(symbol) : 0;
    u32 bit = block_scan(scan, code & 0xFF, all), low = block_scan(scan, extra, all);
    if (found.used > 1) {
        u32 half = mine.number % (MESSAGE_CHUNK / THREADS);
        if (half) bit += ((const u32 *)coded.reference_bits)[mine.number - 1];
        bit += 32 * (1 + ((const u32 *)coded.chunk_starts)[mine.number / (MESSAGE_CHUNK / THREADS)]);
        or_bits(words, bit, code >> 8, code & 0xFF);
    }
    if (!extra) return;
    low += 32 * (1 + found.message) + ((const u32 *)coded.reference_extra)[mine.number];
    or_bits(words, low, reference_of(*mine.rows, mine.row) & ((1u << extra) - 1), extra);
}
