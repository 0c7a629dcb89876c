"""Byte planes: exact for any bits, the layout, sections that do not fit or do not gain, hostile words."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compression.planes import BLOCK, FIELDS, HEADER, decode_planes, encode_planes, entropy_bits, planes_work

CANARY = 0xA5A5A5A5
AT = 3
ELEMENTS = (1, 2, 4, 8)
seeds = st.integers(0, 2**32 - 1)
F32 = np.float32


class Section:
    """Encodes rows between canaries; `end` is -1 where the encoder says so."""

    def __init__(self, rows: np.ndarray, element_bytes: int, room: int | None = None) -> None:
        self.raw = np.ascontiguousarray(rows).view(np.uint8).reshape(len(rows), -1)
        self.rows, self.row_bytes = self.raw.shape
        self.element_bytes = element_bytes
        room = self.raw.size // 4 + 64 if room is None else room
        buffer = np.full(AT + room + 50, CANARY, np.uint32)
        self.words = buffer[: AT + room]
        work = planes_work(self.rows, self.row_bytes, decode=False)
        shape = self.rows, self.row_bytes, self.element_bytes
        self.end = encode_planes(self.raw.reshape(-1), *shape, work, self.words, AT)
        assert set(buffer[:AT]) | set(buffer[AT + room :]) == {CANARY}
        self.size = 4 * (self.end - AT)
        assert self.end == -1 or self.size < self.raw.size

    def decode(self, words: np.ndarray, end: int) -> tuple[int, np.ndarray]:
        """(error, rows), and nothing written outside."""
        buffer = np.full(self.raw.size + 128, 0xA5, np.uint8)
        out = buffer[64:-64]
        work = planes_work(self.rows, self.row_bytes, decode=True)
        error = decode_planes(words, AT, end, self.rows, self.row_bytes, self.element_bytes, work, out)
        assert set(buffer[:64]) | set(buffer[-64:]) == {0xA5}
        return error, out.reshape(self.raw.shape)

    def check(self) -> int:
        """The bytes of the section, which decodes to the rows."""
        assert self.end > 0
        error, out = self.decode(self.words, self.end)
        assert error == 0
        assert np.array_equal(out, self.raw)
        return self.size


def embeddings(rows: int, columns: int, distinct: int, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return (rng.standard_normal((distinct, columns)) * 0.1).astype(F32)[rng.integers(0, distinct, rows)]


@settings(deadline=None, max_examples=150)
@given(
    st.sampled_from(ELEMENTS),
    st.integers(1, 60),
    st.integers(1, 20),
    st.integers(1, 60),
    st.sampled_from([1, 2, 17, 256]),
    seeds,
)
def test_any_shape_comes_back_or_is_refused(element_bytes, rows, columns, distinct, alphabet, seed):
    rng = np.random.default_rng(seed)
    some = rng.integers(0, alphabet, (distinct, columns * element_bytes), np.uint16).astype(np.uint8)
    section = Section(some[rng.integers(0, distinct, rows)], element_bytes)
    if section.end > 0:
        section.check()


@pytest.mark.parametrize("dtype", [np.float16, F32, np.float64])
def test_special_values_keep_all_bits(dtype):
    bits = np.dtype(f"u{np.dtype(dtype).itemsize}")
    quiet = np.array([np.nan], dtype).view(bits)[0]
    patterns = np.array([0, -0.0, np.inf, -np.inf, np.finfo(dtype).smallest_subnormal, 1], dtype).view(bits)
    patterns = np.append(patterns, [quiet ^ bits.type(1), quiet | bits.type(0x55), ~bits.type(0)])
    rows = np.random.default_rng(0).choice(patterns, (500, 16))
    Section(rows.view(dtype), bits.itemsize).check()


@pytest.mark.parametrize(("columns", "element_bytes"), [(1, 8), (16, 4), (3, 4), (5, 2), (13, 1)])
def test_equal_rows_are_stored_once(columns, element_bytes):
    rng = np.random.default_rng(1)
    few = rng.integers(0, 256, (10, columns * element_bytes), np.uint8)
    section = Section(few[rng.integers(0, 10, 4000)], element_bytes)
    assert section.check() <= few.size + 2100
    assert section.words[AT] == 10
    one = Section(few[np.zeros(4000, int)], element_bytes)
    assert one.check() < 200


def test_trained_rows_shrink_without_equal_ones_too():
    rows = embeddings(2048, 16, 10**6)
    assert Section(rows, 4).check() < 0.9 * rows.nbytes
    assert Section(embeddings(2048, 16, 800), 4).check() < 0.45 * rows.nbytes


@pytest.mark.parametrize("rows", [1, 2, 7, 8, 100])
def test_noise_is_refused(rows):
    for columns in (1, 2, 16, 4096):
        noise = np.random.default_rng(columns).integers(0, 256, (rows, columns * 4), np.uint8)
        assert Section(noise, 4).end == -1


@pytest.mark.parametrize(
    ("rows", "columns", "distinct"),
    [(1, BLOCK + 5, 1), (BLOCK + 5, 1, BLOCK), (9000, 16, 5000), (9, 20000, 9), (3 * BLOCK, 2, 2 * BLOCK)],
)
def test_more_than_a_block(rows, columns, distinct):
    table = embeddings(rows, columns, distinct, 3)
    section = Section(table, 4)
    assert section.check() < table.nbytes


def test_layout_of_planes_that_are_not_coded():
    rng = np.random.default_rng(4)
    few = rng.integers(0, 256, (101, 12), np.uint8)
    section = Section(few[np.arange(404) // 4], 4)
    section.check()
    distinct, references = (int(v) for v in section.words[AT : AT + HEADER])
    assert distinct == 101
    plane_words = -(-303 // 4)
    at = AT + HEADER + references
    assert section.words[at : at + 4].tolist() == [2 * plane_words] * 4
    planes = section.words[at + 4 : section.end].view(np.uint8).reshape(4, -1)
    assert np.array_equal(planes[:, :303], few.reshape(303, 4).T)
    assert not planes[:, 303:].any()


def test_entropy_is_near_the_true_one():
    for n in (1, 10, 1000, 65536):
        counts = np.bincount(np.random.default_rng(n).binomial(40, 0.3, n), minlength=256)
        share = counts[counts > 0] / n
        assert abs(entropy_bits(counts, n) - n * -(share * np.log2(share)).sum()) <= 2 + 0.01 * n


def test_a_section_that_does_not_fit_is_refused():
    rows = embeddings(40, 5, 20)
    whole = Section(rows, 4)
    size = whole.end - AT
    slack = 34  # room that the encoder of a table claims, whatever its size
    for room in [*range(size), size + slack]:
        section = Section(rows, 4, room)
        assert section.end == (-1 if room < size else whole.end)


@pytest.mark.parametrize(("rows", "columns", "distinct"), [(300, 16, 120), (300, 3, 300), (5, 400, 5)])
def test_truncated_and_changed_sections_stay_inside(rows, columns, distinct):
    table = embeddings(rows, columns, distinct, 5)
    table = np.round(2 * table) if rows == 5 else table
    section = Section(table, 4)
    section.check()
    for end in range(AT, section.end):
        assert section.decode(section.words[:end].copy(), end)[0] in FIELDS
    rng = np.random.default_rng(rows)
    for trial in range(1500):
        words = section.words[: section.end].copy()
        # Headers, directories and tables are small, and flips there reach furthest.
        most = section.end if trial % 2 else min(section.end, AT + 60)
        for place in rng.integers(AT, most, rng.integers(1, 4)):
            words[place] ^= np.uint32(1 << rng.integers(0, 32)) if trial % 3 else np.uint32(rng.integers(0, 2**32))
        assert section.decode(words, section.end)[0] in (0, *FIELDS)
