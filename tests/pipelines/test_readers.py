"""Files to blocks: compression, block borders, Parquet types, and the real samples."""

import gzip

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipelines import keys, readers
from pipelines.errors import UserError
from pipelines.formats import Schema, load_schema
from pipelines.readers import Reader


def read(path, format="criteo-kaggle", schema=None, serve=False):
    """All rows: label, dense, keys [tables, rows], lists [(keys, lengths)], bad lines."""
    reader = Reader(format, schema or load_schema(format, None), serve)
    reads = list(reader.read(path))
    blocks = [r.block for r in reads]
    lists = [
        (np.concatenate([b.values[i] for b in blocks]), np.concatenate([b.lengths[i] for b in blocks]))
        for i in range(len(blocks[0].values))
    ]
    bad = [b for r in reads for b in r.bad]
    label, dense = np.concatenate([b.label for b in blocks]), np.concatenate([b.dense for b in blocks], axis=1)
    return label, dense, np.concatenate([b.keys for b in blocks], axis=1), lists, bad


def equal(a, b):
    for x, y in zip(a[:3], b[:3], strict=True):
        assert np.array_equal(x, y, equal_nan=x.dtype == np.float32)


def criteo_lines(n, seed=0):
    rng = np.random.default_rng(seed)
    lines = []
    for i in range(n):
        dense = ["" if rng.random() < 0.2 else str(rng.integers(-3, 9000)) for _ in range(13)]
        cats = ["" if rng.random() < 0.2 else f"{rng.integers(0, 2**32):08x}" for _ in range(26)]
        lines.append("\t".join([str(i % 2), *dense, *cats]))
    return lines


def test_plain_gzip_and_any_block_size_give_the_same_rows(tmp_path, monkeypatch):
    text = "\n".join(criteo_lines(3000)).encode()
    plain, zipped = tmp_path / "day_0", tmp_path / "day_0.gz"
    plain.write_bytes(text)
    # Two members, as `cat a.gz b.gz` makes them.
    zipped.write_bytes(gzip.compress(text[:100_000]) + gzip.compress(text[100_000:]))
    whole = read(plain)
    assert len(whole[0]) == 3000
    equal(whole, read(zipped))
    for size in (257, 4096, 100_003):  # the first is shorter than many lines
        monkeypatch.setattr(readers, "BLOCK_BYTES", size)
        equal(whole, read(plain))
        equal(whole, read(zipped))


def test_ends_of_the_file(tmp_path):
    lines = criteo_lines(50)
    wanted = None
    for text in ("\n".join(lines), "\n".join(lines) + "\n", "\r\n".join(lines) + "\r\n", "\ufeff" + "\n".join(lines)):
        path = tmp_path / "train.txt"
        path.write_bytes(text.encode())
        got = read(path)
        wanted = wanted or got
        equal(wanted, got)
        assert len(got[0]) == 50


def test_an_empty_file_has_no_rows(tmp_path):
    path = tmp_path / "train.txt"
    path.write_bytes(b"")
    assert list(Reader("criteo-kaggle", load_schema("criteo-kaggle", None)).read(path)) == []


def test_bad_lines_have_their_number_in_the_file(tmp_path, monkeypatch):
    lines = criteo_lines(500)
    lines[321] = "\t".join(lines[321].split("\t")[:38])
    lines[444] = lines[444].replace("\t", "\tx", 1)
    path = tmp_path / "train.txt"
    path.write_text("\n".join(lines))
    monkeypatch.setattr(readers, "BLOCK_BYTES", 3000)
    label, *_, bad = read(path)
    assert len(label) == 498
    assert [b.line for b in bad] == [322, 445]
    assert bad[0].what == "38 fields, expected 40"
    assert "field 2 (I1) is 'x" in bad[1].what


def test_line_numbers_count_the_header(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("y,a\n1,2\n1,x\n")
    *_, bad = read(path, "csv", Schema(label="y", dense=["a"]))
    assert bad[0].line == 3


def test_damaged_files_are_named(tmp_path):
    path = tmp_path / "day_0.gz"
    path.write_bytes(gzip.compress("\n".join(criteo_lines(500)).encode())[:-2000])
    with pytest.raises(UserError, match="damaged gzip file"):
        read(path)
    path.write_bytes(b"no parquet")
    with pytest.raises(UserError, match="cannot read as Parquet"):
        read(path, "criteo-parquet")


def test_an_endless_line_is_refused(tmp_path, monkeypatch):
    path = tmp_path / "train.txt"
    path.write_bytes(b"x" * 100_000)
    monkeypatch.setattr(readers, "BLOCK_BYTES", 1000)
    monkeypatch.setattr(readers, "MAX_LINE_BYTES", 50_000)
    with pytest.raises(UserError, match="a line is longer than"):
        read(path)


def test_parquet_equals_text(tmp_path):
    lines = [line.split("\t") for line in criteo_lines(40_000)]
    names = ["label", *load_schema("criteo-kaggle", None).columns[1:]]
    (tmp_path / "train.txt").write_text("\n".join("\t".join(line) for line in lines))
    columns = list(zip(*lines, strict=True))
    as_text = pa.table({n: pa.array(c) for n, c in zip(names, columns, strict=True)})
    typed = as_text
    for i in range(14):
        values = [None if v == "" else int(v) for v in columns[i]]
        typed = typed.set_column(i, names[i], pa.array(values, pa.int32() if i % 2 else pa.float64()))
    for i in range(14, 40):
        values = [None if v == "" else v for v in columns[i]]
        kind = pa.array(values, pa.large_string()) if i % 2 else pa.array(values).dictionary_encode()
        typed = typed.set_column(i, names[i], kind)
    wanted = read(tmp_path / "train.txt")
    for name, table in (("text", as_text), ("typed", typed)):
        pq.write_table(table, tmp_path / f"{name}.parquet")
        equal(wanted, read(tmp_path / f"{name}.parquet", "criteo-parquet"))


def test_parquet_lists_integers_and_bad_rows(tmp_path):
    table = pa.table(
        {
            "y": [True, False, True, None],
            "n": pa.array([5, None, -7, 9], pa.int64()),
            "tags": pa.array([["a", None, "b"], None, [], ["c"]], pa.list_(pa.string())),
            "codes": ["1|2", "", "0", "3"],
            "d": ["1", "x", "", "2"],
        }
    )
    pq.write_table(table, tmp_path / "t.parquet")
    schema = Schema(label="y", dense=["d"], categorical=["n"], lists=["tags", {"name": "codes", "missing": ["0"]}])
    label, dense, ids, lists, bad = read(tmp_path / "t.parquet", "parquet", schema)
    assert [(b.line, b.what) for b in bad] == [
        (2, "column d is 'x', not a number"),
        (4, "column y is None, not 0 or 1"),
    ]
    assert label.tolist() == [1, 1]
    assert dense[0, 0] == np.float32(np.log1p(1))
    assert np.isnan(dense[0, 1])
    assert ids[0].tolist() == [keys.text_hash("5"), keys.text_hash("-7")]
    assert lists[0][0].tolist() == [keys.text_hash("a"), keys.text_hash("b")]
    assert lists[0][1].tolist() == [2, 0]
    assert lists[1][0].tolist() == [keys.text_hash("1"), keys.text_hash("2")]
    assert lists[1][1].tolist() == [2, 0]


def test_parquet_list_spread_over_columns(tmp_path):
    pq.write_table(pa.table({"y": [0, 1], "a": [1, 2], "b": [3, 0], "m": [1, 1], "n": [0, 1]}), tmp_path / "t.parquet")
    lists = [{"name": "h", "fields": "1-2", "mask": "3-4", "missing": ["0"]}]
    *_, lists, _ = read(tmp_path / "t.parquet", "parquet", Schema(label="y", lists=lists))
    assert lists[0][0].tolist() == [keys.text_hash("1"), keys.text_hash("2")]
    assert lists[0][1].tolist() == [1, 1]


def test_a_nested_column_is_no_category(tmp_path):
    pq.write_table(pa.table({"y": [0], "a": [[1]]}), tmp_path / "t.parquet")
    with pytest.raises(UserError, match=r"neither a number nor text .*lists"):
        read(tmp_path / "t.parquet", "parquet", Schema(label="y", categorical=["a"]))


# apache/arrow#49338: a column that is empty in the first block was inferred as null.
def test_a_column_that_starts_empty(tmp_path):
    lines = [line.split("\t") for line in criteo_lines(60_000)]
    for i, line in enumerate(lines):
        line[11] = ""
        if i < 50_000:
            line[7] = line[33] = ""
    (tmp_path / "train.txt").write_text("\n".join("\t".join(line) for line in lines))
    _, dense, ids, *_ = read(tmp_path / "train.txt")
    assert np.isnan(dense[10]).all()
    assert np.isnan(dense[6, :50_000]).all()
    assert (ids[19, :50_000] == keys.MISSING_KEY).all()
    for i in range(50_000, 60_000):
        wanted = np.nan if lines[i][7] == "" else keys.dense_value(float(lines[i][7]))
        assert np.array_equal(dense[6, i], np.float32(wanted), equal_nan=True)
        assert ids[19, i] == (int(lines[i][33], 16) if lines[i][33] else keys.MISSING_KEY)


def test_the_crlf_csv_equals_the_head_of_the_tsv(shared_data):
    csv = read(shared_data / "criteo_kaggle_csv_crlf/train.tiny.csv", "criteo-csv")
    tsv = read(shared_data / "criteo_kaggle_head_tsv/train_tiny.csv")
    assert len(csv[0]) == 1999
    for a, b in zip(csv[:3], tsv[:3], strict=True):
        assert np.array_equal(a, b[..., :1999], equal_nan=a.dtype == np.float32)


@pytest.mark.parametrize(
    ("folder", "format", "rows", "rate"),
    [
        ("criteo_kaggle_head_tsv", "criteo-kaggle", 10_001, 0.218),
        ("criteo_1tb_day0_tsv", "criteo-1tb", 10_000, 0.0265),
        ("criteo_kaggle_indexed_csv", "criteo-csv", 10_000, 0.245),
        ("criteo_kaggle_csv_crlf", "criteo-csv", 1999, 0.209),
        ("criteo_kaggle_deepctr_csv", "criteo-csv", 200, 0.245),
        ("avazu_csv", "avazu", 9999, 0.171),
    ],
)
def test_real_text_samples(shared_data, folder, format, rows, rate):
    (path,) = (shared_data / folder).iterdir()
    label, dense, ids, _, bad = read(path, format)
    assert (len(label), bad) == (rows, [])
    assert label.mean() == pytest.approx(rate, abs=6e-4)
    assert np.isfinite(dense[~np.isnan(dense)]).all()
    if format == "avazu":
        # The publisher's sentinels are missing: device_id, app_id, site_id, C20.
        shares = (ids == keys.MISSING_KEY).mean(axis=1)
        assert [round(s, 2) for s in shares[[3, 6, 9, 20]]] == [0.22, 0.78, 0.87, 0.62]


def test_real_values_of_the_indexed_and_deepctr_csv(shared_data):
    (path,) = (shared_data / "criteo_kaggle_indexed_csv").iterdir()
    _, dense, ids, *_ = read(path, "criteo-csv")
    # 9.0 is read as 9; the quoted empty I12 of the second row is missing.
    assert dense[0, 0] == np.float32(np.log1p(9))
    assert np.isnan(dense[11, 1])
    assert int(ids[1, 0]) == keys.text_hash("84.0") | 1 << 63
    (path,) = (shared_data / "criteo_kaggle_deepctr_csv").iterdir()
    _, dense, ids, *_ = read(path, "criteo-csv")
    assert dense[2, 0] == np.float32(np.log1p(260))
    assert int(ids[0, 0]) == 0x05DB9164


def test_serving_files_without_a_label(tmp_path):
    line = "\t".join(["1"] * 39)
    (tmp_path / "test.txt").write_text(f"{line}\n{line}\n")
    label, dense, ids, *_ = read(tmp_path / "test.txt", serve=True)
    assert label.tolist() == [0, 0]
    assert (dense == np.float32(np.log1p(1))).all()
    assert (ids == 1).all()
