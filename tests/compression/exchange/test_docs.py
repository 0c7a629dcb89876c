"""docs/exchange.md and its example script do what they say, on two real ranks."""

from __future__ import annotations

import contextlib
import doctest
import io
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

import compression.exchange
from compression.exchange import ExchangeConfig, thin_sharders
from tests.compression.exchange.models import Bags, batch_of, sharded
from tests.ranks import run_ranks

ROOT = Path(__file__).resolve().parents[3]
GUIDE = (ROOT / "docs" / "exchange.md").read_text()
pytestmark = pytest.mark.usefixtures("compiled")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", GUIDE, re.S)


def run_guide() -> list[int | str]:
    """Examples and failures of all blocks, which share their names, and what failed."""
    names = {"build_model": Bags, "batches": [batch_of(step, 64) for step in range(4)]}
    examples = doctest.DocTestParser().get_doctest("\n".join(blocks("python")), names, "exchange.md", None, None)
    with contextlib.redirect_stdout(io.StringIO()) as said:
        failed = doctest.DocTestRunner().run(examples).failed
    return [len(examples.examples), failed, said.getvalue()]


def test_examples_of_the_guide() -> None:
    for count, failed, said in run_ranks(run_guide, 2):
        assert count > 15 and failed == 0, said


def be_late() -> str:
    """The error of this rank when rank 1 is too late."""
    model = sharded(Bags(), thin_sharders(ExchangeConfig(timeout_s=1.0)))
    for step in range(3):  # DDP's own messages are in the first ones.
        model(batch_of(step, 16)).sum().backward()
    store = dist.distributed_c10d._get_default_store()
    if dist.get_rank() == 1:
        store.wait(["rank 0 gave up"])
    try:
        model(batch_of(3, 16))
    except compression.exchange.ExchangeError as error:
        return f"rank {dist.get_rank()}: {type(error).__name__}: {error}"
    finally:
        store.set("rank 0 gave up", "")
    return "no error"


def test_errors_of_the_guide() -> None:
    (text,) = blocks("text")
    for said, told in zip(run_ranks(be_late, 2), text.split("\n\n"), strict=True):
        assert re.sub(r"\d+ bytes", "n bytes", said) == re.sub(r"\d+ bytes", "n bytes", " ".join(told.split()))


def test_names_of_the_guide() -> None:
    """All public names, and all settings, are in the guide."""
    public = set(compression.exchange.__all__) - {"path_bytes"}
    settings = set(ExchangeConfig.__dataclass_fields__)
    assert not [name for name in public | settings if not re.search(rf"\b{name}\b", GUIDE)]


@pytest.mark.slow
@pytest.mark.parametrize("exchange", ["torchrec", "thin"])
def test_two_towers(exchange: str) -> None:
    script = ROOT / "docs" / "examples" / "two_towers.py"
    options: list[Any] = ["--exchange", exchange, "--steps", 100]
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", 2, script, *options]
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr[-3000:]
    losses = [float(loss) for loss in re.findall(r"step \d+ +loss ([\d.]+)", done.stdout)]
    assert losses[-1] < 3  # Of ln 512 = 6.2 at first; ln (512 / 100) = 1.6 is the least.
    assert ("table_history" in done.stdout) == (exchange == "thin")
