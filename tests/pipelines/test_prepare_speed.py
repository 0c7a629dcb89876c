"""The benchmark behind the conversion speed: that it runs and says what it promises, not how fast."""

from benchmarks.prepare_speed import measure, write_sample


def test_measure(tmp_path):
    write_sample(tmp_path / "train.txt", 3000)
    lines = (tmp_path / "train.txt").read_text().splitlines()
    assert len(lines) == 3000
    assert all(line.count("\t") == 39 for line in lines)
    result = measure(tmp_path / "train.txt", repeats=1)
    assert [r["tool"] for r in result["rows"]] == ["thinwire prepare", "pandas.read_csv", "pandas, the whole job"]
    assert all(r["MB_per_s_per_core"] > 0 for r in result["rows"])
    for bar in result["bars"]:
        assert bar.keys() == {"name", "value", "target", "unit", "ok"}
