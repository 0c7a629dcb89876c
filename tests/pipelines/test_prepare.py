"""What `prepare` writes: ids, splits, counts, transform, real samples."""

from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from prepare_inputs import contents, criteo_lines, read_split, write_lines

from pipelines.dataset import ROW_GROUP, Dataset, part_schema
from pipelines.errors import UserError
from pipelines.keys import dense_value
from pipelines.prepare import PrepareOptions, prepare

SCHEMAS = Path(__file__).resolve().parents[2] / "configs" / "schemas"


def test_ids_counts_and_transform_against_plain_python(tmp_path):
    lines = criteo_lines(5000)
    source = write_lines(tmp_path / "train.txt", lines)
    options = PrepareOptions(min_count=3, max_ids=60)
    manifest = prepare([source], format="criteo-kaggle", out=tmp_path / "out", options=options)
    rows = [line.split("\t") for line in lines]
    train, valid = rows[:4500], rows[4500:]
    assert (manifest.splits["train"].rows, manifest.splits["valid"].rows) == (4500, 500)
    assert manifest.splits["train"].positives == sum(r[0] == "1" for r in train)
    for t, info in enumerate(manifest.tables):
        column = 14 + t
        count = Counter(r[column] for r in train if r[column])
        ranked = sorted(count.items(), key=lambda kv: (-kv[1], int(kv[0], 16)))
        kept = [kv for kv in ranked if kv[1] >= 3][:58]
        ids = {"": 0, **{key: i + 2 for i, (key, _) in enumerate(kept)}}
        for name, part in (("train", train), ("valid", valid)):
            wanted = [ids.get(r[column], 1) for r in part]
            assert read_split(tmp_path / "out", name).column(info.name).to_pylist() == wanted
            assert info.unknown[name] == wanted.count(1)
        assert info.rows == len(kept) + 2 <= 60
        assert info.missing == sum(r[column] == "" for r in train)
        top = -(-len(ranked) // 100)
        assert info.top1_share == pytest.approx(sum(c for _, c in ranked[:top]) / sum(count.values()))
        table = pq.read_table(tmp_path / "out" / "tables" / f"{info.name}.parquet")
        unknown = sum(c for _, c in ranked) - sum(c for _, c in kept)
        assert table.column("count").to_pylist() == [info.missing, unknown, *(c for _, c in kept)]
        assert table.column("key").to_pylist() == [None, None, *(int(k, 16) for k, _ in kept)]
    for d, info in enumerate(manifest.dense):
        wanted = [0.0 if r[1 + d] == "" else dense_value(float(r[1 + d])) for r in train]
        assert read_split(tmp_path / "out", "train").column(info.name).to_pylist() == wanted
        assert info.missing == sum(r[1 + d] == "" for r in train)


def test_parts_follow_the_contract(tmp_path):
    sources = [write_lines(tmp_path / f"day_{i}", criteo_lines(ROW_GROUP + 100, seed=i)) for i in range(2)]
    out = tmp_path / "out"
    options = PrepareOptions(split="random:0.2", seed=5)
    manifest = prepare(sources, format="criteo-1tb", out=out, options=options)
    assert Dataset(out).manifest == manifest
    total = 0
    for split in manifest.splits.values():
        for part in split.parts:
            file = pq.ParquetFile(out / part.path)
            assert file.schema_arrow.equals(part_schema(manifest))
            sizes = [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)]
            assert all(s == ROW_GROUP for s in sizes[:-1])
            assert sum(sizes) == part.rows
            assert part.source.startswith("day_")
        total += split.rows
    assert total == 2 * (ROW_GROUP + 100)
    assert manifest.splits["valid"].rows == pytest.approx(0.2 * total, rel=0.1)
    assert not (out / ".scratch").exists()
    assert "label rate" in (out / "summary.txt").read_text()


def test_row_groups_are_full_across_segments(tmp_path, monkeypatch):
    monkeypatch.setattr("pipelines.segments.SEGMENT_ROWS", 5000)
    lines = criteo_lines(45_000)
    source = write_lines(tmp_path / "train.txt", lines)
    for rule in ("random:0.3", "last:0.3"):
        out = tmp_path / rule
        manifest = prepare([source], format="criteo-kaggle", out=out, options=PrepareOptions(split=rule))
        for split in manifest.splits.values():
            for part in split.parts:
                meta = pq.read_metadata(out / part.path)
                assert all(meta.row_group(i).num_rows == ROW_GROUP for i in range(meta.num_row_groups - 1))
        labels = [int(line[0]) for line in lines]
        if rule == "last:0.3":
            assert read_split(out, "train").column("label").to_pylist() == labels[:31_500]
        assert sum(s.positives for s in manifest.splits.values()) == sum(labels)


# facebookresearch/dlrm#363, meta-pytorch/torchrec#2150: log of (x + 3), or a shift by the file's smallest value.
def test_the_transform_does_not_depend_on_the_file(tmp_path):
    values = [-3, -2, -1, 0, "", 2**31 - 1, -(2**31), 65535, 65536, 7, 8, 9, 10]
    shared = "\t".join(["1", *map(str, values), *["0a"] * 26])
    files = []
    for i, low in enumerate((-3, 0)):
        lines = criteo_lines(200, seed=i, low=low)
        files.append(write_lines(tmp_path / f"day_{i}", [shared, *lines, shared]))
    out = tmp_path / "out"
    prepare(files, format="criteo-1tb", out=out, options=PrepareOptions(split="files:1"))
    prepare(files[:1], format="criteo-1tb", out=tmp_path / "serve", options=PrepareOptions(like=out))
    bits = set()
    for split in ("train", "valid"):
        table = read_split(out, split)
        for row in (0, len(table) - 1):
            dense = np.array([table.column(f"I{i}")[row].as_py() for i in range(1, 14)], np.float32)
            assert np.isfinite(dense).all()
            bits.add(dense.tobytes())
    served = read_split(tmp_path / "serve", "serve")
    bits.add(np.array([served.column(f"I{i}")[0].as_py() for i in range(1, 14)], np.float32).tobytes())
    assert len(bits) == 1
    expected = [0.0 if v == "" else np.sign(v) * np.log1p(abs(v)) for v in values]
    assert np.allclose(np.frombuffer(bits.pop(), np.float32), expected)


# facebookresearch/dlrm#202: missing fields became 0, the same as a real 0.
def test_missing_is_not_zero(tmp_path):
    lines = ["\t".join(["0", *[""] * 39]), "\t".join(["1", *["0"] * 39]), "\t".join(["1", *["0"] * 39])]
    source = write_lines(tmp_path / "train.txt", lines)
    manifest = prepare([source], format="criteo-kaggle", out=tmp_path / "out", options=PrepareOptions(split="none"))
    table = read_split(tmp_path / "out", "train")
    assert table.column("C1").to_pylist() == [0, 2, 2]
    assert table.column("I1").to_pylist() == [0, 0, 0]
    assert [d.missing for d in manifest.dense] == [1] * 13
    assert [t.missing for t in manifest.tables] == [1] * 26
    assert "33.33%" in (tmp_path / "out" / "summary.txt").read_text()


# facebookresearch/dlrm#394: ids above 2^31 - 1.
def test_large_hex_ids(tmp_path):
    values = ["ffffffff", "80000000", "7fffffff", "0", "FFFFFFFF", "7FFFFFFF"]
    rows = ["\t".join(["0", *["1"] * 13, *[v] * 26]) for v in values]
    prepare(
        [write_lines(tmp_path / "a.txt", rows)],
        format="criteo-kaggle",
        out=tmp_path / "a",
        options=PrepareOptions(split="none"),
    )
    names = ["label", *(f"I{i}" for i in range(1, 14)), *(f"C{i}" for i in range(1, 27))]
    columns = zip(*(r.split("\t") for r in rows), strict=True)
    pq.write_table(pa.table(dict(zip(names, columns, strict=True))), tmp_path / "b.parquet")
    options = PrepareOptions(split="none")
    prepare([tmp_path / "b.parquet"], format="criteo-parquet", out=tmp_path / "b", options=options)
    ids = read_split(tmp_path / "a", "train").column("C7").to_pylist()
    assert ids == [3, 5, 2, 4, 3, 2]
    assert read_split(tmp_path / "a", "train").equals(read_split(tmp_path / "b", "train"))


# shenweichen/DeepCTR#24: a category seen only in the test split was out of range.
def test_values_of_valid_and_serving_alone_are_unknown(tmp_path):
    train = criteo_lines(300)
    new = "\t".join(["1", *["1"] * 13, *["cafecafe"] * 26])
    out = tmp_path / "out"
    files = [write_lines(tmp_path / "day_0", train), write_lines(tmp_path / "day_1", [new, train[0]])]
    manifest = prepare(files, format="criteo-1tb", out=out, options=PrepareOptions(split="files:1"))
    valid = read_split(out, "valid")
    assert all(valid.column(f"C{i}")[0].as_py() == 1 for i in range(1, 27))
    assert all(t.unknown == {"train": 0, "valid": 1} for t in manifest.tables)
    unlabelled = [line.split("\t", 1)[1] for line in (new, *train)]
    served = prepare(
        [write_lines(tmp_path / "serve", unlabelled)],
        format="criteo-1tb",
        out=tmp_path / "s",
        options=PrepareOptions(like=out),
    )
    assert list(served.splits) == ["serve"]
    assert served.splits["serve"].positives == 0
    assert all(t.unknown == {"serve": 1} for t in served.tables)
    assert [t.rows for t in served.tables] == [t.rows for t in manifest.tables]
    columns = [f"C{i}" for i in range(1, 27)]
    table = read_split(tmp_path / "s", "serve").select(columns)
    assert table.slice(1).combine_chunks().equals(read_split(out, "train").select(columns).combine_chunks())


def test_like_refuses_other_columns(tmp_path):
    source = write_lines(tmp_path / "train.txt", criteo_lines(100))
    prepare([source], format="criteo-kaggle", out=tmp_path / "out")
    (tmp_path / "s.yaml").write_text(
        'header: false\nseparator: "\\t"\nlabel: 0\ncategorical: [{name: C1, field: 14}]\n'
    )
    options = PrepareOptions(like=tmp_path / "out", schema=tmp_path / "s.yaml")
    with pytest.raises(UserError, match="columns differ from that data set"):
        prepare([source], format="csv", out=tmp_path / "s", options=options)


# mlcommons/inference#607, facebookresearch/dlrm#78: a subset of days; the split by day.
def test_days_and_splits_add_up(tmp_path):
    for day in (3, 7, 11):
        write_lines(tmp_path / f"day_{day}", criteo_lines(100 + day, seed=day))
    for days, rule in (([3], "last:0.1"), ([3, 7], "files:1"), (None, "files:2")):
        out = tmp_path / f"out{days}"
        options = PrepareOptions(days=days, split=rule)
        manifest = prepare(list(tmp_path.glob("day_*")), format="criteo-1tb", out=out, options=options)
        wanted = [100 + d for d in days or (3, 7, 11)]
        assert sum(s.rows for s in manifest.splits.values()) == sum(wanted)
        assert manifest.split_rule.startswith(rule)
        if rule == "files:1":
            assert (manifest.splits["train"].rows, manifest.splits["valid"].rows) == (103, 107)
            assert [p.source for p in manifest.splits["valid"].parts] == ["day_7"]
        assert manifest.split_rule in (out / "summary.txt").read_text()


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (PrepareOptions(split="last:1.5"), "no such split"),
        (PrepareOptions(split="files:0"), "no such split"),
        (PrepareOptions(split="files:1"), "leaves no rows to train"),
        (PrepareOptions(split="last:0.001"), "leaves no rows to valid"),
        (PrepareOptions(min_count=0), "min_count is 0"),
        (PrepareOptions(max_ids=2), "max_ids is 2"),
        (PrepareOptions(seed=-1), "seed is -1"),
        (PrepareOptions(on_bad_line="ignore"), "on_bad_line is 'ignore'"),
        (PrepareOptions(like=Path("x"), min_count=2), "min_count has no effect with like=x"),
    ],
)
def test_option_mistakes(tmp_path, options, expected):
    source = write_lines(tmp_path / "train.txt", criteo_lines(50))
    with pytest.raises(UserError, match=expected):
        prepare([source], format="criteo-kaggle", out=tmp_path / "out", options=options)


def test_bad_lines_are_named_or_counted(tmp_path):
    lines = criteo_lines(300)
    lines[17] = lines[17].rsplit("\t", 2)[0]
    lines[99] = "2" + lines[99][1:]
    source = write_lines(tmp_path / "train.txt", lines)
    with pytest.raises(UserError, match=r"train.txt:18: 38 fields, expected 40"):
        prepare([source], format="criteo-kaggle", out=tmp_path / "out")
    options = PrepareOptions(on_bad_line="skip")
    manifest = prepare([source], format="criteo-kaggle", out=tmp_path / "out", options=options)
    assert sum(s.rows for s in manifest.splits.values()) == 298
    text = (tmp_path / "out" / "summary.txt").read_text()
    assert "train.txt: 2 bad lines left out, first: line 18: 38 fields, expected 40; line 100: field 1 (label)" in text


@pytest.mark.parametrize("kind", ["dense", "categorical", "lists"])
def test_one_kind_of_column_alone(tmp_path, kind):
    (tmp_path / "a.csv").write_text("y,a\n" + "1,2\n0,\n" * 10)
    (tmp_path / "s.yaml").write_text(f"label: y\n{kind}: [a]\n")
    options = PrepareOptions(schema=tmp_path / "s.yaml")
    prepare([tmp_path / "a.csv"], format="csv", out=tmp_path / "out", options=options)
    wanted = {"dense": [float(np.float32(np.log1p(2))), 0.0], "categorical": [2, 0], "lists": [[2], []]}[kind]
    assert read_split(tmp_path / "out", "valid").column("a").to_pylist() == wanted
    assert read_split(tmp_path / "out", "valid").column("label").to_pylist() == [1, 0]


def test_an_empty_input(tmp_path):
    (tmp_path / "train.txt").write_text("")
    with pytest.raises(UserError, match="no rows in the input"):
        prepare([tmp_path / "train.txt"], format="criteo-kaggle", out=tmp_path / "out")


def test_multi_hot(tmp_path, shared_data):
    options = PrepareOptions(schema=SCHEMAS / "alimama.yaml")
    source = shared_data / "taobao_alimama_history" / "alimama_sampled_train.txt"
    manifest = prepare([source], format="csv", out=tmp_path / "out", options=options)
    rows = [line.split(",") for line in source.read_text().splitlines()]
    table = pa.concat_tables([read_split(tmp_path / "out", s) for s in ("train", "valid")])
    wanted = [[v for v, m in zip(r[50:100], r[150:200], strict=True) if m == "1" and v != "0"] for r in rows]
    ids = table.column("history_category").to_pylist()
    assert [len(x) for x in ids] == [len(x) for x in wanted]
    (info,) = [t for t in manifest.tables if t.name == "history_category"]
    mapping = {}
    for row, keys in zip(ids[:450], wanted[:450], strict=True):
        for i, key in zip(row, keys, strict=True):
            assert mapping.setdefault(key, i) == i
    assert len(set(mapping.values())) == len(mapping) == info.rows - 2
    assert info.multi_hot


def test_open_bandit(tmp_path, shared_data):
    options = PrepareOptions(schema=SCHEMAS / "open_bandit.yaml", split="none")
    source = shared_data / "open_bandit_men" / "men.csv"
    manifest = prepare([source], format="csv", out=tmp_path / "out", options=options)
    assert (manifest.splits["train"].rows, manifest.splits["train"].positives) == (10_000, 69)
    assert [t.rows - 2 for t in manifest.tables] == [34, 3, 3, 5, 9, 9]


def test_real_parquet_statistics(tmp_path, shared_data):
    sources = [shared_data / "criteo_kaggle_random_parquet"]
    manifest = prepare(sources, format="criteo-parquet", out=tmp_path / "a", options=PrepareOptions(split="none"))
    # From the README of the samples.
    cardinality = {"C1": 528, "C2": 508, "C3": 46166, "C7": 7931, "C20": 3, "C21": 39401, "C26": 9112}
    assert {t.name: t.rows - 2 for t in manifest.tables if t.name in cardinality} == cardinality
    share = {t.name: round(t.top1_share, 2) for t in manifest.tables}
    assert (share["C1"], share["C3"], share["C6"], share["C19"]) == (0.86, 0.39, 0.45, 0.74)
    assert manifest.splits["train"].rows == 99_174
    timed = prepare(sources, format="criteo-parquet", out=tmp_path / "b")
    assert timed.splits["valid"].rows == 9917
    assert timed.splits["valid"].parts[-1].source.startswith("part-00059")


def test_the_crlf_csv_gives_the_tensors_of_the_tsv(tmp_path, shared_data):
    head = (shared_data / "criteo_kaggle_head_tsv" / "train_tiny.csv").read_text().split("\n")[:1999]
    tsv = write_lines(tmp_path / "train.txt", head)
    prepare([tsv], format="criteo-kaggle", out=tmp_path / "a")
    prepare([shared_data / "criteo_kaggle_csv_crlf" / "train.tiny.csv"], format="criteo-csv", out=tmp_path / "b")
    a, b = contents(tmp_path / "a"), contents(tmp_path / "b")
    assert a.keys() == b.keys()
    assert [n for n in a if a[n] != b[n]] == ["manifest.json", "summary.txt"]
