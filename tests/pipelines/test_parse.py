"""The compiled line parser against a slow one in plain Python, and the lines that break other parsers."""

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines import keys, parse
from pipelines.formats import Column, Schema
from pipelines.layout import build_layout
from pipelines.parse import PADDING, parse_lines

SCHEMA = Schema(
    label="y",
    dense=["a", Column(name="b", missing=["-1", "NA"])],
    categorical=[Column(name="h", hash="hex"), "t", Column(name="s", missing=["none"])],
    lists=[Column(name="l", missing=["0"]), Column(name="r", fields="7-9", mask="10-12", hash="hex")],
    list_separator=";",
)
NAMES = ["y", "a", "b", "h", "t", "s", "l", "r0", "r1", "r2", "m0", "m1", "m2", "unused"]


def run(text: bytes, schema=SCHEMA, names=NAMES, first_line=1):
    layout = build_layout(schema, names, len(names), "test")
    buf = np.frombuffer(bytearray(text + bytes(PADDING)), np.uint8)
    return parse_lines(buf, len(text), layout, first_line)


def split(line: str, separator: str, quotes: bool) -> list[str]:
    fields, rest = [], line
    while True:
        match = re.match(f'"((?:[^"]|"")*)"(?={re.escape(separator)}|$)', rest) if quotes else None
        if match:
            fields.append(match[1].replace('""', '"'))
            rest = rest[match.end() :]
        else:
            end = rest.find(separator)
            end = len(rest) if end < 0 else end
            fields.append(rest[:end])
            rest = rest[end:]
        if not rest:
            return fields
        rest = rest[1:]


def key(text: str, is_hex=False, missing=()):
    if text == "" or text in missing:
        return None
    if is_hex and re.fullmatch("[0-9a-fA-F]{1,8}", text):
        return int(text, 16)
    return keys.text_hash(text) | (1 << 63 if is_hex else 0)


NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)


def reference(line: str, separator: str, quotes: bool):
    """The row, or None for a bad line."""
    f = split(line, separator, quotes)
    if len(f) != len(NAMES):
        return None
    if not NUMBER.fullmatch(f[0]) or float(f[0]) not in (0.0, 1.0):
        return None
    dense = []
    for text, missing in ((f[1], ()), (f[2], ("-1", "NA"))):
        if text == "" or text in missing:
            dense.append(np.float32(np.nan))
        elif NUMBER.fullmatch(text):
            dense.append(np.float32(keys.dense_value(float(text))))
        else:
            return None
    if not all(NUMBER.fullmatch(m) for m in f[10:13]):
        return None
    one = [key(f[3], True), key(f[4]), key(f[5], missing=("none",))]
    separated = [k for part in f[6].split(";") if (k := key(part, missing=("0",))) is not None]
    spread = [k for text, m in zip(f[7:10], f[10:13], strict=True) if float(m) and (k := key(text, True)) is not None]
    return int(float(f[0])), dense, one, separated, spread


NUMBERS = st.sampled_from(
    ["", "0", "1", "-1", "-3", "12345678", "65535", "65536", "2147483647", "NA", "1.5", "260.0", "x", "1e3", "-0", "-"]
)
TEXTS = st.text('0123456789abcdefG;"x\té\r', max_size=10)
LABELS = st.sampled_from(["0", "1", "0.0", "1.0", "2", "", '"1"'])
MASKS = st.sampled_from(["0", "1", "1.0", "", "7"])


@st.composite
def lines(draw):
    texts = [draw(TEXTS) for _ in range(7)]
    texts = [f'"{t.replace(chr(34), chr(34) * 2)}"' if draw(st.integers(0, 4)) == 0 else t for t in texts]
    texts[0] = draw(st.sampled_from(["deadbeef", "0000000A", "", "1", texts[0]]))
    fields = [
        draw(LABELS),
        draw(NUMBERS),
        draw(NUMBERS),
        *texts[:3],
        draw(st.sampled_from(["", "0", "a;b", "a;;0;c", texts[3]])),
    ]
    fields += [*texts[4:], draw(MASKS), draw(MASKS), draw(MASKS), draw(TEXTS)]
    if draw(st.integers(0, 9)) == 0:
        fields = fields[: draw(st.integers(1, len(fields)))]
    return fields


@settings(deadline=None, max_examples=400)
@given(st.lists(lines(), min_size=1, max_size=8), st.sampled_from(",\t"), st.booleans(), st.booleans())
def test_against_plain_python(rows, separator, quotes, crlf):
    texts = [separator.join(f).replace("\n", "") for f in rows]
    # Each line ends at its newline, whatever carriage returns it holds before.
    expected = [reference(t if crlf else t.removesuffix("\r"), separator, quotes) for t in texts]
    text = "".join(t + ("\r\n" if crlf else "\n") for t in texts).encode()
    schema = SCHEMA.model_copy(update={"separator": separator, "quotes": quotes})
    block, n, bad, n_bad = run(text, schema)
    good = [e for e in expected if e is not None]
    assert n == len(rows)
    assert n_bad == len(rows) - len(good)
    assert [b.line for b in bad] == [i + 1 for i, e in enumerate(expected) if e is None]
    assert block.label.tolist() == [g[0] for g in good]
    for i in range(2):
        assert np.array_equal(
            block.dense[i, : len(good)], np.array([g[1][i] for g in good], np.float32), equal_nan=True
        )
    for i in range(3):
        wanted = [int(keys.MISSING_KEY) if g[2][i] is None else g[2][i] for g in good]
        assert block.keys[i, : len(good)].tolist() == wanted
    for i in range(2):
        assert block.values[i].tolist() == [k for g in good for k in g[3 + i]]
        assert block.lengths[i, : len(good)].tolist() == [len(g[3 + i]) for g in good]


ROW = "1,2,3,0a,t,s,x;y,1,2,3,1,1,1,"


def test_negative_zero_is_zero():
    block, *_ = run(b"0,-0,-0.0,,,,,,,,1,1,1,\n")
    assert not np.signbit(block.dense).any()


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("1,2", "2 fields, expected 14"),
        (ROW + ",", "15 fields, expected 14"),
        ("", "1 fields, expected 14"),
        (ROW.replace("2", "2x", 1), "field 2 (a) is '2x', not a number"),
        (ROW.replace("1", "3", 1), "field 1 (y) is '3', not 0 or 1"),
        ("x,2", "2 fields, expected 14"),
    ],
)
def test_bad_lines_are_named(line, what):
    block, n, bad, n_bad = run(f"{ROW}\n{line}\n{ROW}\n".encode(), first_line=10)
    assert (len(block.label), n, n_bad) == (2, 3, 1)
    assert (bad[0].line, bad[0].what) == (11, what)
    assert block.lengths.tolist() == [[2, 2], [3, 3]]


# apache/arrow#36037, airbytehq/airbyte#28860: stray quotes and line breaks.
@pytest.mark.parametrize("value", ['"', 'a"b', '"ab', 'ab"', '""x', 'x""'])
def test_a_stray_quote_is_data(value):
    text = ROW.replace("t,s", f"{value},s")
    block, n, _, n_bad = run(f"{text}\n{ROW}\n".encode())
    assert (n, n_bad) == (2, 0)
    assert int(block.keys[1, 0]) == keys.text_hash(value)


def test_quoted_fields_are_unwrapped():
    block, _, _, n_bad = run(b'"1","2","","0A","a,""b""","none","x;y",1,2,3,1,1,1,""\r\n')
    assert n_bad == 0
    assert int(block.keys[0, 0]) == 10
    assert int(block.keys[1, 0]) == keys.text_hash('a,"b"')
    assert block.keys[2, 0] == keys.MISSING_KEY
    assert np.isnan(block.dense[1, 0])


def test_many_bad_lines_are_all_counted():
    _, _, bad, n_bad = run(b"x\n" * 100)
    assert n_bad == 100
    assert len(bad) == parse.MAX_BAD
