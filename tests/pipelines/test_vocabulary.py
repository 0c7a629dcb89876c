"""Ids at serving time."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipelines.errors import UserError
from pipelines.intern import Interner
from pipelines.keys import MISSING_KEY
from pipelines.prepare import PrepareOptions, prepare
from pipelines.vocabulary import Vocabulary

ROOT = Path(__file__).resolve().parents[2]


def test_interner_against_a_dict():
    rng = np.random.default_rng(0)
    interner, known = Interner(2), {}
    for size in (1, 3, 100, 5000, 20_000):
        keys = rng.integers(0, size, size, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        keys[::7] = MISSING_KEY
        ids = np.empty(size, np.int32)
        interner.add(keys, ids)
        wanted = [0 if k == MISSING_KEY else known.setdefault(int(k), len(known) + 1) for k in keys]
        assert ids.tolist() == wanted
    assert interner.keys.tolist() == list(known)
    assert interner.find(np.array([MISSING_KEY, *interner.keys[:5], 12345], np.uint64), -1).tolist() == [
        0,
        1,
        2,
        3,
        4,
        5,
        -1,
    ]


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    folder = tmp_path_factory.mktemp("vocabulary")
    values = [("A1", "7", "x")] * 5 + [("b2", "8", "y")] * 3 + [("", "", "")] * 2 + [("zz", "-1", "w")]
    (folder / "a.csv").write_text("y,h,n,t\n" + "".join(f"1,{','.join(v)}\n" for v in values))
    (folder / "s.yaml").write_text(
        "label: y\ncategorical: [{name: h, hash: hex}, n, {name: t, missing: [w]}]\nmissing: ['-1']\n"
    )
    options = PrepareOptions(split="none", schema=folder / "s.yaml")
    prepare([folder / "a.csv"], format="csv", out=folder / "out", options=options)
    return folder / "out"


def test_encode(dataset):
    hexes = Vocabulary.open(dataset, "h")
    assert hexes.rows == 5
    ids = hexes.encode(["A1", "a1", "000000a1", "b2", "B2", "zz", "ZZ", "", None, "ffff"])
    assert ids.dtype == np.int32
    assert ids.tolist() == [2, 2, 2, 3, 3, 4, 1, 0, 0, 1]
    numbers = Vocabulary.open(dataset, "n")
    for values in ([7, 8, -1, None, 9], ["7", "8", "-1", "", "9"], pa.array([7, 8, -1, None, 9], pa.int8())):
        assert numbers.encode(values).tolist() == [2, 3, 0, 0, 1]
    assert Vocabulary.open(dataset, "t").encode(np.array(["x", "w", "q"])).tolist() == [2, 0, 1]


def test_table_file(dataset):
    table = pq.read_table(dataset / "tables" / "h.parquet")
    assert table.column("id").to_pylist() == [0, 1, 2, 3, 4]
    assert table.column("count").to_pylist() == [2, 0, 5, 3, 1]
    assert table.column("key").to_pylist()[:4] == [None, None, 0xA1, 0xB2]
    assert table.schema.types == [pa.int32(), pa.uint64(), pa.int64()]


def test_unknown_table(dataset):
    with pytest.raises(UserError, match="no table 'q'"):
        Vocabulary.open(dataset, "q")


# ray-project/ray#59662: Python's own hash is salted per process.
def test_ids_do_not_depend_on_the_process(dataset):
    code = (
        "import sys; from pipelines.vocabulary import Vocabulary\n"
        "print(Vocabulary.open(sys.argv[1], 't').encode(['y', 'x', 'é']))"
    )
    out = set()
    for seed in ("0", "1", "77"):
        env = {"PYTHONHASHSEED": seed, "PATH": "/usr/bin:/bin"}
        run = subprocess.run(
            [sys.executable, "-c", code, str(dataset)], cwd=ROOT, env=env, capture_output=True, text=True, check=True
        )
        out.add(run.stdout)
    assert out == {"[3 2 1]\n"}
