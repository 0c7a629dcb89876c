// References to distinct rows back from Huffman symbols and lower bits. Whatever the words are, nothing is read or
// written outside of the arrays.
#include "unhuffman.cuh"

// What a Huffman message says of its symbols. Shared by a block.
struct Book {
    u8 lengths[256];
    u32 number[16], following[16], kraft, wrong;
};

// Read lengths and the directory of a message of `size` words; fills the table that decodes it and `chunk_starts`. False
// if they are not what an encoder writes. All threads of a block call it.
__device__ inline bool read_book(BlockScan &scan, Book &book, const Coded &coded, const u32 *words, u32 size, u32 rows) {
    u32 last = words[0] & 0xFF, lengths = (last + 10) / 8, count = ceil_div(rows, MESSAGE_CHUNK), s = threadIdx.x;
    if (lengths + ceil_div(count, 2) > size) return false;
    if (s == 0) book.kraft = book.wrong = 0;
    if (s < 16) book.number[s] = 0;
    __syncthreads();
    u32 length = s <= last ? words[(s + 2) / 8] >> 4 * ((s + 2) % 8) & 15 : 0;
    book.lengths[s] = (u8)length;
    if (length > LONGEST || (s == last && !length)) atomicOr(&book.wrong, 1u);
    if (length && length <= LONGEST) {
        atomicAdd(&book.kraft, 1u << (LONGEST - length));
        atomicAdd(&book.number[length], 1u);
    }
    u32 unused = 32 * lengths - 4 * (last + 3);  // padding
    if (s == 0 && unused && words[lengths - 1] >> (32 - unused)) atomicOr(&book.wrong, 1u);
    if (s == 0 && count % 2 && words[lengths + count / 2] >> 16) atomicOr(&book.wrong, 1u);
    __syncthreads();
    if (book.wrong || book.kraft != 1u << LONGEST) return false;
    if (s == 0) {
        book.following[1] = 0;
        for (u32 l = 2; l <= LONGEST; l++) book.following[l] = (book.following[l - 1] + book.number[l - 1]) << 1;
    }
    __syncthreads();
    if (length) {
        u32 code = book.following[length];
        for (u32 t = 0; t < s; t++) code += book.lengths[t] == length;
        for (u32 at = __brev(code) >> (32 - length); at < 1u << LONGEST; at += 1u << length)
            ((u16 *)coded.decoding)[at] = (u16)(s << 8 | length);
    }
    u32 at = lengths + ceil_div(count, 2);
    for (u32 start = 0; start < count; start += THREADS) {
        u32 i = start + s, all, before = block_scan(scan, i < count ? half_at(words, lengths, i) : 0, all);
        if (i < count) ((u32 *)coded.chunk_starts)[i] = at + before;
        at += all;
    }
    return at == size;
}

// The symbols of a chunk, by one thread; false if it does not end where it should.
__device__ inline bool read_chunk(const Coded &coded, const u32 *words, u32 begin, u32 end, u32 first, u32 stop) {
    const u16 *table = (const u16 *)coded.decoding;
    u32 bit = 32 * begin, largest = 0;
    for (u32 i = first; i < stop; i++) {
        u32 entry = table[bits_at(words, bit, end) & ((1u << LONGEST) - 1)];
        ((u8 *)coded.reference_symbols)[i] = (u8)(entry >> 8);
        largest = max(largest, entry >> 8);
        bit += entry & 0xFF;
    }
    bool padded = bit % 32 == 0 || words[end - 1] >> bit % 32 == 0;
    return largest < REFERENCE_SYMBOLS && begin < end && ceil_div(bit, 32) == end && padded;
}

// The number of the distinct row of each row, from symbols and lower bits in words[at : end]. False if they are not what
// an encoder writes. All threads of a block call it.
__device__ inline bool read_numbers(
    BlockScan &scan, const Coded &coded, const Rows &rows, const u32 *words, u32 at, u32 end, u32 distinct) {
    const u8 *symbols = (const u8 *)coded.reference_symbols;
    u32 bit = 32 * at, seen = 0, wrong = 0;
    for (u32 start = 0; start < rows.rows; start += THREADS) {
        u32 row = start + threadIdx.x, symbol = row < rows.rows ? symbols[row] : 0, extra = extra_bits(symbol);
        u32 all, news, bad, before = block_scan(scan, extra, all), value = symbol;
        if (extra) value = ((4 + symbol % 4) << extra) + (bits_at(words, bit + before, end) & ((1u << extra) - 1));
        bool first = row < rows.rows && value == 0;
        u32 ahead = block_scan(scan, first, news), number = first ? seen + ahead : value - 1;
        block_scan(scan, row < rows.rows && !first && number >= seen + ahead, bad);
        if (row < rows.rows) ((u32 *)rows.numbers)[row] = number;
        bit += all;
        seen += news;
        wrong |= bad;
        if (bit > 32 * end) return false;
    }
    bool padded = bit % 32 == 0 || words[end - 1] >> bit % 32 == 0;
    return !wrong && seen == distinct && 32 * end - bit < 32 && padded;
}

// References of sections with fewer distinct rows than rows. A CUDA block a `Coded`.
extern "C" __global__ void __launch_bounds__(256, 4) read_references(
    const Coded *all_coded, const CodedState *coded_states, const Section *sections, const Rows *all_rows,
    const State *states, const Message *messages, u32 *problems) {
    __shared__ BlockScan scan;
    __shared__ Book book;
    __shared__ u32 wrong;
    const Coded &coded = all_coded[blockIdx.x];
    const CodedState &found = coded_states[blockIdx.x];
    const Rows &rows = all_rows[coded.rows];
    const Section &s = sections[rows.section];
    const State &state = states[rows.section];
    if (!is_sound(state, problems[s.message] & (BAD_FRAME | BAD_SECTION)) || state.distinct == rows.rows) return;
    const u32 *words = (const u32 *)messages[s.message].words + state.start + CODED_HEADER;
    u32 size = found.references ? words[0] : 0, r = (u32)rows.rows;
    bool good = found.references && size && size < found.references;
    if (threadIdx.x == 0) wrong = 0;
    __syncthreads();
    if (good && size == 1) {
        good = words[1] < REFERENCE_SYMBOLS;
        for (u32 row = threadIdx.x; row < r; row += THREADS) ((u8 *)coded.reference_symbols)[row] = (u8)words[1];
    } else if (good) {
        good = read_book(scan, book, coded, words + 1, size, r);
        __syncthreads();
        u32 count = ceil_div(r, MESSAGE_CHUNK);
        const u32 *starts = (const u32 *)coded.chunk_starts;
        for (u32 i = threadIdx.x; good && i < count; i += THREADS) {
            u32 end = i + 1 < count ? starts[i + 1] : size, first = i * MESSAGE_CHUNK;
            if (!read_chunk(coded, words + 1, starts[i], end, first, min(first + MESSAGE_CHUNK, r))) atomicOr(&wrong, 1u);
        }
    }
    __syncthreads();
    good = good && !wrong && read_numbers(scan, coded, rows, words, 1 + size, found.references, state.distinct);
    if (threadIdx.x == 0 && !good) atomicOr(&problems[s.message], (u32)BAD_NUMBER);
}
