// Chain huffman: residuals, symbols, the places of all parts, and the parts.
#include "coded.cuh"

// The section of a block of 1024 positions, with all that is known of it; false if it is not of chain huffman.
struct CodedBlock {
    const Section *section;
    const State *state;
    const Rows *rows;
    const Coded *coded;
    u32 first, total;  // first position, positions that there are
    __device__ bool find(const Section *sections, const u32 *owners, i64 blocks, const State *states,
                         const Rows *all_rows, const i64 *coded_of, const Coded *all_coded) {
        i64 at = ((i64)blockIdx.x * THREADS + threadIdx.x) / 32;
        if (at >= blocks) return false;
        section = sections + owners[at];
        state = states + owners[at];
        if (section->work < 0 || coded_of[section->work] < 0 || !state->width) return false;
        rows = all_rows + section->work;
        coded = all_coded + coded_of[section->work];
        first = (u32)(at - section->first_block) * BLOCK;
        total = state->distinct * (u32)rows->columns;
        return true;
    }
};

// What the prediction leaves of all codes. A warp a block of positions.
extern "C" __global__ void __launch_bounds__(256) make_residuals(
    const Section *sections, const u32 *owners, i64 blocks, const State *states, const Rows *all_rows,
    const i64 *coded_of, const Coded *all_coded) {
    CodedBlock mine;
    if (!mine.find(sections, owners, blocks, states, all_rows, coded_of, all_coded)) return;
    u32 columns = (u32)mine.rows->columns, width = mine.state->width;
    Model model = {(short *)mine.coded->model, columns};
    const u32 *firsts = (const u32 *)mine.rows->firsts;
    for (u32 p = mine.first + lane_id(); p < min(mine.first + BLOCK, mine.total); p += 32) {
        Place place(p, columns, mine.state->distinct);
        u32 row = place.distinct_row(columns);
        if (columns > 1) row = firsts[row];
        int pivots[MOST_PIVOTS];
        for (u32 t = 0; t < model.pivots(); t++) pivots[t] = code_at(*mine.rows, width, row, model.pivot(t));
        int code = code_at(*mine.rows, width, row, place.column);
        ((u16 *)mine.coded->left)[p] = (u16)zigzag(cut(code - predicted(model, place.column, pivots), width));
    }
}

// The column of a tile that this warp has; false if there is none.
struct CodedUnit {
    const Coded *coded;
    const Rows *rows;
    const State *state;
    u32 owner, number;
    __device__ bool find(const Coded *all_coded, const u32 *unit_owners, i64 units, const Rows *all_rows,
                         const State *states) {
        i64 at = ((i64)blockIdx.x * THREADS + threadIdx.x) / 32;
        if (at >= units) return false;
        owner = unit_owners[at];
        coded = all_coded + owner;
        rows = all_rows + coded->rows;
        state = states + rows->section;
        number = (u32)(at - coded->first_unit);
        return state->width != 0;
    }
};

// Symbols of each column of each tile, their bits, and the escaped residuals. A warp a column.
extern "C" __global__ void __launch_bounds__(256) make_symbols(
    const Coded *all_coded, const u32 *unit_owners, i64 units, const Rows *all_rows, const State *states,
    const Family *family) {
    CodedUnit mine;
    if (!mine.find(all_coded, unit_owners, units, all_rows, states)) return;
    u32 columns = (u32)mine.rows->columns;
    Unit unit(mine.number, columns, mine.state->distinct);
    if (!unit.some) return;
    u32 table = ((const u8 *)mine.coded->choice)[unit.column], paired = ((const u8 *)family->paired)[table];
    const u8 *known = (const u8 *)family->known + 256 * table;
    const u32 *codes = (const u32 *)family->codes + 256 * table;
    const u16 *left = (const u16 *)mine.coded->left + unit.base;
    u8 *symbols = (u8 *)mine.coded->symbols + unit.base;
    u32 shift = Model{(short *)mine.coded->model, columns}.shift(), m = unit.symbols(paired), bits = 0, escapes = 0;
    for (u32 i = lane_id(); i < m; i += 32) {
        u32 one = left[i] >> shift, symbol = min(one, ESCAPE);
        if (paired) {
            u32 two = m + i < unit.size ? left[m + i] >> shift : 0;
            symbol = (one | two) < 16 ? one | two << 4 : ESCAPE;
        }
        symbol = known[symbol];
        symbols[i] = (u8)symbol;
        bits += codes[symbol] & 0xFF;
        escapes += symbol == ESCAPE ? 1 + paired : 0;
    }
    bits = warp_sum(bits);
    escapes = warp_sum(escapes);
    if (lane_id() == 0) {
        ((u32 *)mine.coded->bits)[mine.number] = bits;
        ((u32 *)mine.coded->escapes)[mine.number] = escapes;
    }
}

// Words of the references: message and lower bits, with the places of chunks. All threads of a block call it.
__device__ inline u32 place_references(BlockScan &scan, const Coded &coded, CodedState &found, u32 rows) {
    u32 chunks = ceil_div(rows, THREADS), *extra = (u32 *)coded.reference_extra, low = 0, message = 1;
    for (u32 start = 0; start < chunks; start += THREADS) {
        u32 i = start + threadIdx.x, all, before = block_scan(scan, i < chunks ? extra[i] : 0, all);
        if (i < chunks) extra[i] = low + before;
        low += all;
    }
    if (found.used > 1) {
        const u32 *bits = (const u32 *)coded.reference_bits;
        u32 count = ceil_div(rows, MESSAGE_CHUNK), *starts = (u32 *)coded.chunk_starts;
        message = (found.last + 10) / 8 + ceil_div(count, 2);
        for (u32 start = 0; start < count; start += THREADS) {
            u32 i = start + threadIdx.x, size = 0, all;
            if (i < count) size = ceil_div(bits[2 * i] + (2 * i + 1 < chunks ? bits[2 * i + 1] : 0), 32);
            u32 before = block_scan(scan, size, all);
            if (i < count) starts[i] = message + before;
            message += all;
        }
    }
    if (threadIdx.x == 0) found.message = message;
    return 1 + message + ceil_div(low, 32);
}

// Where all parts of a section begin, and whether it takes the chain; else it stays what `place_blocks` found. A CUDA
// block a `Coded`.
extern "C" __global__ void __launch_bounds__(256) place_coded(
    const Coded *all_coded, CodedState *coded_states, const Section *sections, const Rows *all_rows, State *states) {
    __shared__ BlockScan scan;
    const Coded &coded = all_coded[blockIdx.x];
    CodedState &found = coded_states[blockIdx.x];
    const Rows &rows = all_rows[coded.rows];
    const Section &s = sections[rows.section];
    State &state = states[rows.section];
    if (!state.width) return;
    u32 columns = (u32)rows.columns, distinct = state.distinct, tile = tile_rows(columns), tiles = ceil_div(distinct, tile);
    Model model = {(short *)coded.model, columns};
    u32 references = distinct < rows.rows ? place_references(scan, coded, found, (u32)rows.rows) : 0;
    u32 directory = CODED_HEADER + references + model_words(model.pivots(), columns);
    u32 at = directory + ceil_div(tiles * columns, 2), escaped = 0;
    for (u32 t = 0; t < tiles; t++) {
        if (threadIdx.x == 0) ((u32 *)coded.tiles)[t] = at;
        u32 size = min(tile, distinct - t * tile), bits = 0;
        for (u32 start = 0; start < columns; start += THREADS) {
            u32 c = start + threadIdx.x, unit = t * columns + c, all, every;
            u32 before = block_scan(scan, c < columns ? ((const u32 *)coded.bits)[unit] : 0, all);
            u32 ahead = block_scan(scan, c < columns ? ((const u32 *)coded.escapes)[unit] : 0, every);
            if (c < columns) {
                ((u32 *)coded.bit_starts)[unit] = bits + before;
                ((u32 *)coded.escapes)[unit] = escaped + ahead;
            }
            bits += all;
            escaped += every;
        }
        at += ceil_div(bits, 32) + ceil_div(size * columns * model.shift(), 32);
    }
    if (threadIdx.x) return;
    u32 total = at + ceil_div(escaped, 2) + 2 * state.code_patches;
    if (escaped > distinct * columns / 8 + 64 || total >= raw_words(s)) return;
    found.references = references;
    found.directory = directory;
    found.escapes_at = at;
    found.escapes = escaped;
    state.chain = HUFFMAN;
    state.bound = __uint_as_float(__float_as_uint(state.limit) + 1);  // `place_blocks` may have made it 0
    state.patches = state.code_patches;
    state.words = total;
}

// Words of 0, to put bits in. A warp a block of positions, of which there are at least as many as words.
extern "C" __global__ void __launch_bounds__(256) clear_coded(
    const Section *sections, const u32 *owners, i64 blocks, const State *states, const Message *messages) {
    i64 at = ((i64)blockIdx.x * THREADS + threadIdx.x) / 32;
    if (at >= blocks) return;
    const Section &s = sections[owners[at]];
    const State &state = states[owners[at]];
    if (state.chain != HUFFMAN) return;
    u32 *words = (u32 *)messages[s.message].words + state.start, first = (u32)(at - s.first_block) * BLOCK;
    for (u32 i = first + lane_id(); i < min(first + BLOCK, state.words); i += 32) words[i] = 0;
}

// Header, lengths and directory of references, and model. A CUDA block a `Coded`.
extern "C" __global__ void __launch_bounds__(256) write_coded_heads(
    const Coded *all_coded, const CodedState *coded_states, const Section *sections, const Rows *all_rows,
    const State *states, const Message *messages) {
    const Coded &coded = all_coded[blockIdx.x];
    const CodedState &found = coded_states[blockIdx.x];
    const Rows &rows = all_rows[coded.rows];
    const State &state = states[rows.section];
    if (state.chain != HUFFMAN) return;
    u32 *words = (u32 *)messages[sections[rows.section].message].words + state.start, columns = (u32)rows.columns;
    if (threadIdx.x == 0) {
        words[0] = state.distinct;
        words[1] = state.patches;
        words[2] = found.escapes;
        words[3] = found.references;
    }
    if (found.references) {
        u32 *message = words + CODED_HEADER + 1;
        if (threadIdx.x == 0) {
            message[-1] = found.message;
            message[0] = found.last;  // also all there is, if it is the only symbol
        }
        __syncthreads();
        if (found.used > 1) {
            const u32 *codebook = (const u32 *)coded.codebook, *starts = (const u32 *)coded.chunk_starts;
            if (threadIdx.x <= found.last)
                or_bits(message, 4 * (threadIdx.x + 2), codebook[threadIdx.x] & 0xFF, 4);
            u32 count = ceil_div((u32)rows.rows, MESSAGE_CHUNK);
            u16 *directory = (u16 *)(message + (found.last + 10) / 8);
            for (u32 i = threadIdx.x; i < count; i += THREADS)
                directory[i] = (u16)((i + 1 < count ? starts[i + 1] : found.message) - starts[i]);
        }
    }
    Model model = {(short *)coded.model, columns};
    u32 pivots = model.pivots();
    u8 *bytes = (u8 *)(words + CODED_HEADER + found.references);
    if (threadIdx.x == 0) {
        bytes[0] = (u8)pivots;
        bytes[1] = (u8)(model.shift() << 4 | state.width);
    }
    if (threadIdx.x < pivots) {
        bytes[2 + 2 * threadIdx.x] = (u8)model.pivot(threadIdx.x);
        bytes[3 + 2 * threadIdx.x] = (u8)(model.pivot(threadIdx.x) >> 8);
    }
    bytes += 2 + 2 * pivots;
    for (u32 c = threadIdx.x; c < columns; c += THREADS) {
        bytes[c] = (u8)model.bias(c);
        for (u32 t = 0; t < pivots; t++) bytes[(1 + t) * columns + c] = (u8)model.weight(t, c);
        bytes[(1 + pivots) * columns + c] = ((const u8 *)coded.choice)[c];
    }
}

// Symbols, escapes and directory entry of each column of each tile. A warp a column.
extern "C" __global__ void __launch_bounds__(256) write_symbols(
    const Coded *all_coded, const CodedState *coded_states, const u32 *unit_owners, i64 units, const Section *sections,
    const Rows *all_rows, const State *states, const Message *messages, const Family *family) {
    CodedUnit mine;
    if (!mine.find(all_coded, unit_owners, units, all_rows, states) || mine.state->chain != HUFFMAN) return;
    const Coded &coded = *mine.coded;
    Unit unit(mine.number, (u32)mine.rows->columns, mine.state->distinct);
    if (!unit.some) return;
    const CodedState &found = coded_states[mine.owner];
    u32 *words = (u32 *)messages[sections[mine.rows->section].message].words + mine.state->start;
    u32 table = ((const u8 *)coded.choice)[unit.column], paired = ((const u8 *)family->paired)[table];
    const u32 *codes = (const u32 *)family->codes + 256 * table;
    const u16 *left = (const u16 *)coded.left + unit.base;
    const u8 *symbols = (const u8 *)coded.symbols + unit.base;
    u32 bit = ((const u32 *)coded.bit_starts)[mine.number], escape = ((const u32 *)coded.escapes)[mine.number];
    u32 m = unit.symbols(paired), *tile = words + ((const u32 *)coded.tiles)[unit.tile];
    u16 *escapes = (u16 *)(words + found.escapes_at);
    if (lane_id() == 0) ((u16 *)(words + found.directory))[mine.number] = (u16)((const u32 *)coded.bits)[mine.number];
    for (u32 start = 0; start < m; start += 32) {
        u32 i = start + lane_id(), symbol = i < m ? symbols[i] : 0, code = i < m ? codes[symbol] : 0;
        u32 sum = warp_scan(code & 0xFF), escaped = __ballot_sync(ALL, i < m && symbol == ESCAPE);
        or_bits(tile, bit + sum - (code & 0xFF), code >> 8, code & 0xFF);
        bit += __shfl_sync(ALL, sum, 31);
        if (escaped >> lane_id() & 1) {
            u32 at = escape + (1 + paired) * __popc(escaped & ((1u << lane_id()) - 1));
            escapes[at] = left[i];
            if (paired) escapes[at + 1] = m + i < unit.size ? left[m + i] : (u16)0;
        }
        escape += (1 + paired) * __popc(escaped);
    }
}

// Low bits of residuals. A warp a block of positions.
extern "C" __global__ void __launch_bounds__(256) write_low_bits(
    const Section *sections, const u32 *owners, i64 blocks, const State *states, const Message *messages,
    const Rows *all_rows, const i64 *coded_of, const Coded *all_coded) {
    CodedBlock mine;
    if (!mine.find(sections, owners, blocks, states, all_rows, coded_of, all_coded) || mine.state->chain != HUFFMAN)
        return;
    u32 columns = (u32)mine.rows->columns, shift = Model{(short *)mine.coded->model, columns}.shift();
    if (!shift) return;
    u32 *words = (u32 *)messages[mine.section->message].words + mine.state->start;
    for (u32 p = mine.first + lane_id(); p < min(mine.first + BLOCK, mine.total); p += 32) {
        Place place(p, columns, mine.state->distinct);
        u32 last = (place.tile + 1) * columns - 1;  // the tile's last column, which the low bits follow
        u32 bits = ((const u32 *)mine.coded->bit_starts)[last] + ((const u32 *)mine.coded->bits)[last];
        u32 begin = ((const u32 *)mine.coded->tiles)[place.tile] + ceil_div(bits, 32);
        u32 bit = (place.column * place.size + place.row) * shift;
        or_bits(words + begin, bit, ((const u16 *)mine.coded->left)[p] & ((1u << shift) - 1), shift);
    }
}
