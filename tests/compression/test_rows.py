"""The chains of rows, feature by feature: each test sees in the section that the feature is used."""

from typing import NamedTuple

import numpy as np
import pytest

from compression import Codec
from compression.wire import CHAINS, DESCRIPTOR, HEADER
from tests.compression.codec_checks import assert_kept, assert_same, noise, round_trip, trained

# docs/wire-format.md: outside of these a matrix is one column; rows are coded in blocks.
FEWEST_ROWS, MOST_COLUMNS = 8, 4096
CODED = ("huffman", "rans")
ROWS = ("dedup", *CODED)


class Head(NamedTuple):
    """What a coded section says of itself."""

    distinct: int
    patches: int
    escapes: int
    pivots: int
    shift: int
    width: int


def coded(codec: Codec, table: np.ndarray, bound: float, chain: str) -> tuple[Head, int]:
    """(head, bytes of the payload) of a table that the chain takes, and that comes back."""
    payload, out = round_trip(codec, table, bound, chain)
    assert_kept(table, out, bound)
    words = np.frombuffer(payload, np.uint32)
    assert words[HEADER] & 0xFF == CHAINS[chain]
    at = HEADER + DESCRIPTOR
    distinct, patches, escapes, references = (int(word) for word in words[at : at + 4])
    if chain == "dedup":
        return Head(distinct, patches, 0, 0, 0, references), len(payload)
    model = words[at + 4 + references :].view(np.uint8)
    return Head(distinct, patches, escapes, int(model[0]), int(model[1]) >> 4, int(model[1]) & 15), len(payload)


@pytest.mark.parametrize("chain", ROWS)
def test_rows_that_are_equal_once_quantised_are_sent_once(codec, chain):
    few = trained(40, 16, distinct=40)
    rows = few[np.random.default_rng(0).integers(0, 40, 3000)]
    near = rows + np.random.default_rng(1).uniform(-1e-6, 1e-6, rows.shape).astype(np.float32)
    for table in (rows, np.round(few / 0.02)[np.arange(3000) % 40].astype(np.float32) * 0.02 + (near - rows) / 10):
        head, size = coded(codec, table, 0.01, chain)
        assert head.distinct <= 40
        assert size < 4500
    assert coded(codec, np.zeros((3000, 16), np.float32), 0.01, chain)[0].distinct == 1
    distinct = np.arange(1024, dtype=np.float32).reshape(-1, 1) * np.ones((1, 8), np.float32)
    assert coded(codec, distinct, 0.25, chain)[0].distinct == 1024


@pytest.mark.parametrize("chain", ROWS)
@pytest.mark.parametrize("columns", [2, 3, 4, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 255])
def test_any_number_of_columns(codec, chain, columns):
    for rows, distinct in ((FEWEST_ROWS, 8), (100, 30), (300, 300)):
        table = trained(rows, columns, columns, distinct)
        for bound in (0.05, 0.002, 1e-5):
            payload, out = round_trip(codec, table, bound, chain)
            assert_kept(table, out, bound)
            assert len(payload) < 40 + table.nbytes
    coded(codec, trained(300, columns, columns), 0.02, chain)


@pytest.mark.parametrize("chain", CODED)
@pytest.mark.parametrize(
    "shape", [(1, 4000), (7, 600), (4000, 1), (8, MOST_COLUMNS + 1), (8, MOST_COLUMNS), (40, 3000)], ids=str
)
def test_matrices_of_few_rows_and_very_wide_ones_are_one_column(codec, chain, shape):
    table = (0.1 * np.random.default_rng(0).standard_normal(shape)).astype(np.float32)
    head, size = coded(codec, table, 0.02, chain)
    flat = shape[0] < FEWEST_ROWS or shape[1] > MOST_COLUMNS or shape[1] < 2
    assert head.distinct == (table.size if flat else shape[0])
    assert size < 0.25 * table.nbytes
    table[0, -1] = np.nan
    table[-1, 0] = -0.0
    assert coded(codec, table, 0.02, chain)[0].patches == 2


@pytest.mark.parametrize("chain", CODED)
def test_columns_that_depend_on_others_are_predicted(codec, chain):
    rng = np.random.default_rng(0)
    hidden = rng.standard_normal((2000, 3))
    table = (hidden @ rng.standard_normal((3, 24)) + 0.02 * rng.standard_normal((2000, 24))).astype(np.float32)
    alone = np.stack([rng.permutation(column) for column in table.T], 1)
    head, size = coded(codec, table, 0.05, chain)
    assert 3 <= head.pivots <= 4
    other, larger = coded(codec, alone, 0.05, chain)
    assert other.pivots == 0
    assert size < 0.75 * larger


@pytest.mark.parametrize("chain", CODED)
def test_codes_of_16_bits_and_low_bits(codec, chain):
    table = (0.1 * np.random.default_rng(0).standard_normal((1000, 16))).astype(np.float32)
    seen = {coded(codec, table, bound, chain)[0][-2:] for bound in (0.02, 4e-3, 5e-4, 1e-4, 3e-5)}
    assert {width for _, width in seen} == {1, 2}
    assert max(shift for shift, _ in seen) >= 6
    # The largest codes, and differences of them, which wrap around.
    for codes in (127, 32767):
        steps = np.random.default_rng(1).choice([-codes, codes, 0], (1000, 8))
        steps[:, 1::2] = -steps[:, ::2]
        for extra in (0, 1):
            wide = (2 * (1 - 2.0**-14) * (steps + extra * np.sign(steps))).astype(np.float32)
            if extra:  # out of reach
                assert_kept(wide, round_trip(codec, wide, 1.0, chain)[1], 1.0)
            else:
                assert coded(codec, wide, 1.0, chain)[0].width == (1 if codes == 127 else 2)


@pytest.mark.parametrize("chain", CODED)
def test_residuals_that_no_symbol_holds(codec, chain):
    """More and more of them, in tables of pairs and of single symbols, up to where the chain is given up."""
    rng = np.random.default_rng(0)
    most = 0
    for scale in (0.002, 0.01, 0.05, 0.2):
        for share in (0, 0.001, 0.01, 0.05, 0.12, 0.2, 0.5):
            table = (scale * rng.standard_normal((1001, 16))).astype(np.float32)
            far = rng.random(table.shape) < share
            table[far] = rng.uniform(-2.5, 2.5, int(far.sum()))
            payload, out = round_trip(codec, table, 0.01, chain)
            assert_kept(table, out, 0.01)
            if np.frombuffer(payload, np.uint32)[HEADER] & 0xFF == CHAINS[chain]:
                most = max(most, coded(codec, table, 0.01, chain)[0].escapes)
    assert most > 500


@pytest.mark.parametrize("chain", ROWS)
def test_patches_are_in_their_places(codec, chain):
    table = trained(999, 17, distinct=500)
    places = np.random.default_rng(0).choice(table.size, table.size // 40, replace=False)
    table.reshape(-1)[places] = noise(1, places.size).reshape(-1)
    head, _ = coded(codec, table, 0.01, chain)
    assert places.size / 3 < head.patches <= places.size
    _, out = round_trip(codec, table, 0.01, chain)
    far = np.flatnonzero(~(np.abs(table.reshape(-1).astype(np.float64)) < 1000))
    assert_same(table.reshape(-1)[far], out.reshape(-1)[far])


@pytest.mark.parametrize("chain", ROWS)
def test_more_rows_than_a_block(codec, chain):
    for columns in (2, 5, 40, 130):
        block = min(max(2**18 // columns, 64), 4096)
        for rows in (block - 1, block, block + 1, 2 * block + 33):
            head, _ = coded(codec, trained(rows, columns, distinct=rows), 0.02, chain)
            assert head.distinct > 0.6 * rows or columns < 6


@pytest.mark.parametrize("chain", ROWS)
def test_references_of_all_sizes(codec, chain):
    """Rows that repeat near and far: numbers of 1 to 16 bits."""
    distinct = trained(40000, 4, distinct=40000, scale=1.0)
    rng = np.random.default_rng(0)
    for order in (
        np.sort(rng.integers(0, 40000, 60000)),
        (40000 * rng.random(60000) ** 4).astype(int),
        np.arange(60000) % 30000,
    ):
        head, size = coded(codec, distinct[order], 0.02, chain)
        assert 1000 < head.distinct < 60000
        assert size < 0.6 * 16 * 60000


@pytest.mark.parametrize("chain", ROWS)
def test_hashes_that_fall_into_the_same_places_cost_no_rows(codec, chain):
    """Rows of few bits differ little, so their hashes are the hardest."""
    bits = (np.arange(4096)[:, None] >> np.arange(12)) & 1
    table = np.random.default_rng(0).permutation(np.concatenate([bits, bits])).astype(np.float32)
    head, _ = coded(codec, table, 0.25, chain)
    assert head.distinct == 4096


@pytest.mark.parametrize("chain", CODED)
def test_rows_with_a_period_are_seen_as_they_are(codec, chain):
    """The model is fitted to a sample of rows, which must not always fall on the same phase."""
    table = ((np.arange(4096)[:, None] >> np.arange(12)) & 1).astype(np.float32)
    head, size = coded(codec, table, 0.25, chain)
    assert head.escapes < table.size / 50
    assert size < 0.12 * table.nbytes


@pytest.mark.parametrize("chain", ROWS)
def test_halves_of_rows_are_coded_as_their_values(codec, chain):
    table = trained(400, 16).astype(np.float16)
    head, size = coded(codec, table, 0.02, chain)
    wide, larger = coded(codec, table.astype(np.float32), 0.02, chain)
    assert size == larger or head.patches != wide.patches
