// Sections of chain huffman back to codes. Whatever the words are, nothing is read or written outside of the arrays; a
// section that does not hold together is not looked at further.
#include "unhuffman.cuh"

// The model behind the references; where its directory begins, or 0. All threads of a block call it, with one shared
// `any`.
__device__ inline u32 read_model(
    u32 &any, const Coded &coded, u32 columns, const u32 *words, u32 at, u32 end, u32 &width) {
    if (at >= end) return 0;
    u32 pivots = words[at] & 0xFF, shift = words[at] >> 12 & 15;
    width = words[at] >> 8 & 15;
    if (pivots > MOST_PIVOTS || shift > 12 || width < 1 || width > 2 || at + model_words(pivots, columns) > end) return 0;
    Model model = {(short *)coded.model, columns};
    bool wrong = false;
    if (threadIdx.x == 0) {
        model.head[0] = (short)pivots;
        model.head[1] = (short)shift;
    }
    for (u32 t = threadIdx.x; t < pivots; t += THREADS) {
        u32 column = byte_at(words, at, 2 + 2 * t) | byte_at(words, at, 3 + 2 * t) << 8;
        wrong = wrong || column >= columns;
        model.pivot(t) = (short)column;
    }
    u32 start = 2 + 2 * pivots;
    for (u32 c = threadIdx.x; c < columns; c += THREADS) {
        model.bias(c) = (signed char)byte_at(words, at, start + c);
        for (u32 t = 0; t < pivots; t++) model.weight(t, c) = (signed char)byte_at(words, at, start + (1 + t) * columns + c);
        u32 table = byte_at(words, at, start + (1 + pivots) * columns + c);
        wrong = wrong || table >= TABLES;
        ((u8 *)coded.choice)[c] = (u8)table;
    }
    if (threadIdx.x == 0) any = 0;
    __syncthreads();
    if (wrong) atomicOr(&any, 1u);
    __syncthreads();
    return any ? 0 : at + model_words(pivots, columns);
}

// Where the tiles and the symbols of their columns begin; false if they do not fill words[at : end]. All threads of a
// block call it.
__device__ inline bool find_tiles(
    BlockScan &scan, const Coded &coded, u32 columns, u32 distinct, u32 shift, const u32 *words, u32 directory, u32 end) {
    u32 tile = tile_rows(columns), tiles = ceil_div(distinct, tile), at = directory + ceil_div(tiles * columns, 2);
    for (u32 t = 0; t < tiles && at <= end; t++) {
        if (threadIdx.x == 0) ((u32 *)coded.tiles)[t] = at;
        u32 size = min(tile, distinct - t * tile), bits = 0;
        for (u32 start = 0; start < columns; start += THREADS) {
            u32 c = start + threadIdx.x, unit = t * columns + c, own = c < columns ? half_at(words, directory, unit) : 0;
            u32 all, before = block_scan(scan, own, all);
            if (c < columns) {
                ((u32 *)coded.bits)[unit] = own;
                ((u32 *)coded.bit_starts)[unit] = bits + before;
            }
            bits += all;
        }
        at += ceil_div(bits, 32) + ceil_div(size * columns * shift, 32);
    }
    return at == end;
}

// Header, model and places of tiles. A CUDA block a `Coded`.
extern "C" __global__ void __launch_bounds__(256) read_coded_heads(
    const Coded *all_coded, CodedState *coded_states, const Section *sections, const Rows *all_rows, State *states,
    const Message *messages, u32 *problems) {
    __shared__ BlockScan scan;
    __shared__ u32 any;
    const Coded &coded = all_coded[blockIdx.x];
    CodedState &found = coded_states[blockIdx.x];
    const Rows &rows = all_rows[coded.rows];
    const Section &s = sections[rows.section];
    State &state = states[rows.section];
    if (problems[s.message] & BAD_FRAME || state.chain != HUFFMAN) return;
    const u32 *words = (const u32 *)messages[s.message].words + state.start;
    u32 columns = (u32)rows.columns, r = (u32)rows.rows, width = 1, directory = 0;
    bool good = state.words >= CODED_HEADER;
    u32 distinct = good ? words[0] : 0, patches = good ? words[1] : 0, escapes = good ? words[2] : 0;
    u32 references = good ? words[3] : 0;
    u64 used = CODED_HEADER + (u64)references + ((u64)escapes + 1) / 2 + 2 * (u64)patches;
    good = good && distinct >= 1 && distinct <= r && (columns > 1 || distinct == r) && patches <= s.n &&
           used <= state.words && (distinct < r || !references);
    u32 end = good ? state.words - 2 * patches - (escapes + 1) / 2 : 0;
    if (good) directory = read_model(any, coded, columns, words, CODED_HEADER + references, end, width);
    Model model = {(short *)coded.model, columns};
    u64 entries = (u64)ceil_div(distinct, tile_rows(columns)) * columns;
    good = good && directory && directory + (entries + 1) / 2 <= end &&
           find_tiles(scan, coded, columns, distinct, model.shift(), words, directory, end);
    if (threadIdx.x) return;
    state.distinct = distinct;
    state.patches = patches;
    state.width = width;
    found.references = references;
    found.escapes_at = end;
    found.escapes = escapes;
    if (!good) atomicOr(&problems[s.message], (u32)BAD_SECTION);
}

// The symbols of each column of each tile, and how many residuals are escaped. A thread a column.
extern "C" __global__ void __launch_bounds__(256) read_symbols(
    const Coded *all_coded, const u32 *unit_owners, i64 units, const Section *sections, const Rows *all_rows,
    const State *states, const Message *messages, const Family *family, u32 *problems) {
    i64 at = (i64)blockIdx.x * THREADS + threadIdx.x;
    if (at >= units) return;
    const Coded &coded = all_coded[unit_owners[at]];
    const Rows &rows = all_rows[coded.rows];
    const Section &s = sections[rows.section];
    const State &state = states[rows.section];
    if (!is_sound(state, problems[s.message] & (BAD_FRAME | BAD_SECTION))) return;
    u32 number = (u32)(at - coded.first_unit);
    Unit unit(number, (u32)rows.columns, state.distinct);
    if (!unit.some) return;
    const u32 *words = (const u32 *)messages[s.message].words + state.start;
    u32 table = ((const u8 *)coded.choice)[unit.column], paired = ((const u8 *)family->paired)[table];
    const u16 *decoding = (const u16 *)family->decoding + (table << LONGEST);
    u8 *symbols = (u8 *)coded.symbols + unit.base;
    u32 bit = 32 * ((const u32 *)coded.tiles)[unit.tile] + ((const u32 *)coded.bit_starts)[number];
    u32 stop = bit + ((const u32 *)coded.bits)[number], escapes = 0, m = unit.symbols(paired);
    for (u32 i = 0; i < m; i++) {
        u32 entry = decoding[bits_at(words, bit, state.words) & ((1u << LONGEST) - 1)];
        symbols[i] = (u8)(entry >> 8);
        escapes += entry >> 8 == ESCAPE ? 1 + paired : 0;
        bit += entry & 0xFF;
    }
    ((u32 *)coded.escapes)[number] = escapes;
    if (bit != stop) atomicOr(&problems[s.message], (u32)BAD_NUMBER);
}

// Where the escapes of each column begin. A CUDA block a `Coded`.
extern "C" __global__ void __launch_bounds__(256) place_escapes(
    const Coded *all_coded, const CodedState *coded_states, const Section *sections, const Rows *all_rows,
    const State *states, u32 *problems) {
    __shared__ BlockScan scan;
    const Coded &coded = all_coded[blockIdx.x];
    const Rows &rows = all_rows[coded.rows];
    const Section &s = sections[rows.section];
    const State &state = states[rows.section];
    if (!is_sound(state, problems[s.message] & (BAD_FRAME | BAD_SECTION))) return;
    u32 columns = (u32)rows.columns, units = ceil_div(state.distinct, tile_rows(columns)) * columns, total = 0;
    for (u32 start = 0; start < units; start += THREADS) {
        u32 i = start + threadIdx.x, *escapes = (u32 *)coded.escapes;
        u32 all, before = block_scan(scan, i < units ? escapes[i] : 0, all);
        if (i < units) escapes[i] = total + before;
        total += all;
    }
    if (threadIdx.x == 0 && total != coded_states[blockIdx.x].escapes) atomicOr(&problems[s.message], (u32)BAD_NUMBER);
}

// Residuals from symbols, low bits and escapes. A warp a column.
extern "C" __global__ void __launch_bounds__(256, 4) read_residuals(
    const Coded *all_coded, const CodedState *coded_states, const u32 *unit_owners, i64 units, const Section *sections,
    const Rows *all_rows, const State *states, const Message *messages, const Family *family, const u32 *problems) {
    i64 at = ((i64)blockIdx.x * THREADS + threadIdx.x) / 32;
    if (at >= units) return;
    const Coded &coded = all_coded[unit_owners[at]];
    const Rows &rows = all_rows[coded.rows];
    const Section &s = sections[rows.section];
    const State &state = states[rows.section];
    if (!is_sound(state, problems[s.message])) return;
    u32 number = (u32)(at - coded.first_unit), columns = (u32)rows.columns;
    Unit unit(number, columns, state.distinct);
    if (!unit.some) return;
    const u32 *words = (const u32 *)messages[s.message].words + state.start;
    u32 paired = ((const u8 *)family->paired)[((const u8 *)coded.choice)[unit.column]], m = unit.symbols(paired);
    u32 shift = Model{(short *)coded.model, columns}.shift(), mask = (1u << shift) - 1;
    u32 last = (unit.tile + 1) * columns - 1;
    u32 bits = ((const u32 *)coded.bit_starts)[last] + ((const u32 *)coded.bits)[last];
    const u32 *low = words + ((const u32 *)coded.tiles)[unit.tile] + ceil_div(bits, 32);
    u32 low_words = ceil_div(unit.size * columns * shift, 32), start_bit = unit.column * unit.size * shift;
    u32 escapes_at = coded_states[unit_owners[at]].escapes_at, escape = ((const u32 *)coded.escapes)[number];
    const u8 *symbols = (const u8 *)coded.symbols + unit.base;
    u16 *left = (u16 *)coded.left + unit.base;
    for (u32 start = 0; start < m; start += 32) {
        u32 i = start + lane_id(), symbol = i < m ? symbols[i] : 0;
        u32 escaped = __ballot_sync(ALL, i < m && symbol == ESCAPE);
        for (u32 half = 0; half < 1 + paired; half++) {
            u32 r = half * m + i, value;
            if (i >= m || r >= unit.size) continue;
            if (symbol == ESCAPE) {
                u32 before = __popc(escaped & ((1u << lane_id()) - 1));
                value = half_at(words, escapes_at, escape + (1 + paired) * before + half);
            } else {
                u32 high = !paired ? symbol : half ? symbol >> 4 : symbol & 15;
                value = high << shift | (shift ? bits_at(low, start_bit + r * shift, low_words) & mask : 0);
            }
            left[r] = (u16)(state.width == 1 ? value & 0xFF : value);
        }
        escape += (1 + paired) * __popc(escaped);
    }
}

// Codes of the distinct rows, i16 [distinct * columns]. A warp a block of 1024 positions.
extern "C" __global__ void __launch_bounds__(256, 4) restore_codes(
    const Section *sections, const u32 *owners, i64 blocks, const State *states, const Rows *all_rows,
    const i64 *coded_of, const Coded *all_coded, const u32 *problems) {
    i64 at = ((i64)blockIdx.x * THREADS + threadIdx.x) / 32;
    if (at >= blocks) return;
    const Section &s = sections[owners[at]];
    const State &state = states[owners[at]];
    if (!is_sound(state, problems[s.message])) return;
    const Rows &rows = all_rows[s.work];
    const Coded &coded = all_coded[coded_of[s.work]];
    u32 first = (u32)(at - s.first_block) * BLOCK, columns = (u32)rows.columns;
    Model model = {(short *)coded.model, columns};
    const u16 *left = (const u16 *)coded.left;
    for (u32 p = first + lane_id(); p < min(first + BLOCK, state.distinct * columns); p += 32) {
        Place place(p, columns, state.distinct);
        u32 tile = p - place.column * place.size;  // the residual of this row in column 0
        int pivots[MOST_PIVOTS];
        for (u32 t = 0; t < model.pivots(); t++) {
            int rest = unzigzag(left[tile + model.pivot(t) * place.size]);
            pivots[t] = cut(rest + predicted(model, model.pivot(t), pivots), state.width);
        }
        int code = cut(unzigzag(left[p]) + predicted(model, place.column, pivots), state.width);
        ((short *)rows.codes)[place.distinct_row(columns) * columns + place.column] = (short)code;
    }
}
