"""Schemas, layouts and the choice of input files."""

import re

import pytest

from pipelines.errors import UserError
from pipelines.formats import CATEGORICAL_NAMES, DENSE_NAMES, FORMATS, load_schema
from pipelines.layout import text_layout
from pipelines.sources import find_files


def message(error) -> str:
    text = str(error.value)
    assert "\n" not in text
    return text


def write(path, text):
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("label: y\ndense: [a]\nseperator: ';'\n", "unknown key 'seperator' .did you mean 'separator'"),
        ("label: y\n", "no dense, categorical or list column"),
        ("label: y\ndense: [a, a]\n", "two columns are named 'a'"),
        ("label: y\ndense: 5\n", "dense: "),
        ("label: y\ndense: [a]\nseparator: ab\n", "separator must be one byte"),
        ("label: y\ndense: [a]\nhash: md5\n", "hash must be text or hex"),
        ("label: y\ncategorical: [../a]\n", "'../a' cannot be a column name"),
        ("label: [", "cannot read the schema"),
        ("", "Input should be"),
    ],
)
def test_schema_mistakes_are_one_clear_line(tmp_path, text, expected):
    with pytest.raises(UserError) as error:
        load_schema("csv", write(tmp_path / "s.yaml", text))
    assert re.search(expected, message(error))
    assert "s.yaml" in message(error)


def test_formats_and_schema_files():
    for name in FORMATS:
        if name in ("csv", "parquet"):
            with pytest.raises(UserError, match="needs a schema file"):
                load_schema(name, None)
        else:
            assert load_schema(name, None).label
    with pytest.raises(UserError, match="did you mean 'criteo-1tb'"):
        load_schema("criteo-1t", None)


def test_a_missing_schema_file(tmp_path):
    with pytest.raises(UserError, match="no such schema file"):
        load_schema("csv", tmp_path / "none.yaml")


HEADER = ["Label", *DENSE_NAMES, *CATEGORICAL_NAMES]


@pytest.mark.parametrize(
    ("line", "header", "label_field"),
    [
        (",".join(["Id", *HEADER]), True, 1),
        (",".join(HEADER), True, 0),
        (",".join(f'"{n}"' for n in HEADER), True, 0),
        (",".join(["0"] * 40), False, 0),
        (",".join(["0"] * 41), False, 1),
    ],
)
def test_criteo_csv_with_and_without_header_and_id(line, header, label_field):
    layout, has_header = text_layout("criteo-csv", load_schema("criteo-csv", None), [line], "f", serve=False)
    assert has_header == header
    assert layout.fields.kind.tolist().index(1) == label_field


# facebookresearch/dlrm#192: the unlabelled test file must not be read shifted by one column.
@pytest.mark.parametrize(
    ("format", "line"),
    [
        ("criteo-kaggle", "\t".join(["1"] * 39)),
        ("criteo-1tb", "\t".join(["1"] * 39)),
        ("criteo-csv", ",".join(["1"] * 39)),
        ("criteo-csv", ",".join(["Id", *HEADER[1:]])),
    ],
)
def test_an_unlabelled_file_is_refused_but_for_serving(format, line):
    with pytest.raises(UserError, match="no label"):
        text_layout(format, load_schema(format, None), [line, line], "test.txt", serve=False)
    layout, _ = text_layout(format, load_schema(format, None), [line, line], "test.txt", serve=True)
    assert 1 not in layout.fields.kind


def schema(tmp_path, text):
    return load_schema("csv", write(tmp_path / "s.yaml", text))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("label: y\ndense: [aa]\n", "no column 'aa' .did you mean 'a'"),
        ("label: z\ndense: [a]\n", "no column 'z'"),
        ("dense: [a]\n", "names no label"),
        ("label: y\ndense: [{name: q, field: 9}]\n", "uses field 9, the file has 4"),
        ("label: y\ndense: [a, {name: q, field: a}]\n", "two columns of the schema use field 1"),
        ("label: y\nlists: [{name: q, fields: 1-9}]\n", "'1-9' is no range of the 4 fields"),
        ("label: y\nlists: [{name: q, fields: 1-2, mask: 3-3}]\n", "2 fields and 1 mask fields"),
        ("label: y\ndense: [a]\nheader: false\n", "no header that could name 'y'"),
    ],
)
def test_a_schema_that_does_not_fit_the_file(tmp_path, text, expected):
    with pytest.raises(UserError) as error:
        text_layout("csv", schema(tmp_path, text), ["y,a,b,c"], "data.csv", serve=False)
    assert re.search(expected, message(error))
    assert message(error).startswith("data.csv: ")


def test_files_are_in_natural_order_and_hidden_ones_left_out(tmp_path):
    for name in ("part-10", "part-9", "part-1", "_SUCCESS", ".part-1.crc", "part-9.crc"):
        write(tmp_path / name, "x")
    assert [f.name for f in find_files([tmp_path], "avazu")] == ["part-1", "part-9", "part-10"]


# mlcommons/inference#607: a subset of days was rejected.
def test_days(tmp_path):
    for name in ("day_3.gz", "day_10", "day_7", "day_0.part.txt"):
        write(tmp_path / name, "x")
    assert [f.name for f in find_files([tmp_path], "criteo-1tb")] == ["day_0.part.txt", "day_3.gz", "day_7", "day_10"]
    assert [f.name for f in find_files([tmp_path], "criteo-1tb", [7, 3])] == ["day_3.gz", "day_7"]
    assert [f.name for f in find_files([tmp_path / "day_7"], "criteo-1tb")] == ["day_7"]
    with pytest.raises(UserError, match="no file for day 4, 5: looked for day_4 or day_4"):
        find_files([tmp_path], "criteo-1tb", [3, 4, 5])
    with pytest.raises(UserError, match="has no days"):
        find_files([tmp_path], "criteo-kaggle", [1])


def test_missing_and_empty_sources(tmp_path):
    with pytest.raises(UserError, match="no such file or directory"):
        find_files([tmp_path / "none"], "avazu")
    with pytest.raises(UserError, match="no data files"):
        find_files([tmp_path], "avazu")
    with pytest.raises(UserError, match="given twice"):
        find_files([write(tmp_path / "a", "x"), tmp_path], "avazu")
    with pytest.raises(UserError, match="no input given"):
        find_files([], "avazu")
