"""`thinwire bench kernels` without a GPU: what it says then, and how results become claims."""

import json

import pytest
from click.testing import CliRunner

from app.cli import cli
from benchmarks.kernels import __main__ as script
from benchmarks.kernels import roofline, traffic
from benchmarks.kernels.result import bars, lines
from compression import gpu
from compression.device.backend import kernel_files


@pytest.fixture
def no_gpu(monkeypatch):
    def missing(*_):
        raise gpu.GpuUnavailableError("CuPy cannot be imported: install it")

    monkeypatch.setattr(gpu, "CudaBackend", missing)


def test_without_a_gpu_one_line_says_so(no_gpu, tmp_path):
    done = CliRunner().invoke(cli, ["bench", "kernels", "--json", str(tmp_path / "out.json")])
    assert done.exit_code != 0 and not (tmp_path / "out.json").exists()
    assert "no GPU to measure: CuPy cannot be imported: install it" in str(done.exception)


def test_the_script_says_so_too(no_gpu, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["kernels", "--quick"])
    assert script.main() == 2
    assert capsys.readouterr().err == "no GPU to measure: CuPy cannot be imported: install it\n"


def row(message, chain, encode, decode, ratio=8.0):
    return {
        "message": message, "chain": chain, "ratio": ratio, "encode_gb_per_s": encode, "decode_gb_per_s": decode,
        "encode_us": 50.0, "decode_us": 40.0, "encode_stages_us": {"measure_blocks": 9.0}, "decode_stages_us": {},
    }  # fmt: skip


def test_results_become_claims_and_lines():
    rows = [row("model", "bitpack", 900, 900), row("model", "huffman", 100, 400, 16.0), row("demo", "bitpack", 1, 1)]
    done = {
        "device": {"name": "H", "arch": "sm_90", "copy_gb_per_s": 4000.0}, "checked": 12, "rows": rows,
        "peers": [{"peer": "nvCOMP ANS", "ratio": 10.0, "encode_gb_per_s": 1, "decode_gb_per_s": 1}],
        "not_measured": ["an exchange"],
    }  # fmt: skip
    found = {one["name"]: one["ok"] for one in bars(done)}
    assert found == {
        "bitpack: encode": True, "bitpack: decode": False, "huffman: encode": False, "huffman: decode": True,
        "demo model: encode and decode, at most": True, "ratio over nvCOMP's best": True,
    }  # fmt: skip
    text = "\n".join(lines({**done, "bars": bars(done)}))
    assert "not measured: an exchange" in text and "measure_blocks 9.0 us" in text
    assert "ratio over nvCOMP's best" not in {one["name"] for one in bars({**done, "peers": []})}
    json.dumps(done)


def test_the_model_of_traffic_knows_the_kernels(tmp_path):
    for stages in roofline.chains().values():
        for stage in stages:
            assert set(stage.kernel.split(", ")) <= set(kernel_files())
    encode, decode = traffic.encode_stages("bitpack", 8), traffic.decode_stages("bitpack", 8)
    assert traffic.limit(encode, 4.8e12) == pytest.approx(4.8e12 / 2.26, rel=0.01)
    assert traffic.limit(decode, 4.8e12) == pytest.approx(4.8e12 / 1.26, rel=0.01)
    assert len(traffic.encode_stages("bitpack", 8, relative=True)) == len(encode) + 1
    roofline.draw(str(tmp_path / "figure.png"))
    assert (tmp_path / "figure.png").stat().st_size > 10_000
