"""The sharded modules as users of TorchRec use them: lossless, they give what TorchRec's own exchange gives."""

from __future__ import annotations

import sys
import traceback
from typing import Any

import numpy as np
import pytest
from numba.core.dispatcher import Dispatcher

from compression import Relative
from compression.exchange import Direction, ExchangeConfig, TablePolicy, thin_sharders, warm_up
from tests.compression.exchange.models import exact, fused, torchrec_sharders
from tests.compression.exchange.scenarios import SCENARIOS
from tests.ranks import run_ranks

pytestmark = pytest.mark.usefixtures("compiled")
OPTIONS = {"fused_params": fused("sgd")}
PATHS = ("row", "pooled", "mixed")


def numbers(found: Any) -> list[float]:
    """Of nested lists and dictionaries."""
    if isinstance(found, dict):
        found = [found[key] for key in sorted(found)]
    return [n for one in found for n in numbers(one)] if isinstance(found, list | tuple) else [float(found)]


def differences(names: list[str]) -> dict[str, str]:
    """What is not as with TorchRec's own exchange, by scenario and path; and what was compiled after `warm_up`."""
    warm_up()
    before = signatures()
    problems = {}
    for name in names:
        plain = numbers(SCENARIOS[name](torchrec_sharders(**OPTIONS)))
        for path in PATHS:
            sharders = thin_sharders(exact(path, verify=True, timeout_s=30), **OPTIONS)
            try:
                np.testing.assert_allclose(numbers(SCENARIOS[name](sharders)), plain, rtol=1e-5, atol=1e-6)
            except AssertionError:
                problems[f"{name}, {path}"] = traceback.format_exc()
    for stochastic in (False, True):
        policy = TablePolicy(forward=Direction(0.01, "huffman"), backward=Direction(Relative(0.02)))
        config = ExchangeConfig(default=policy, stochastic=stochastic, verify=True)
        SCENARIOS["both_kinds"](thin_sharders(config, **OPTIONS))
    late = {name for name, count in signatures().items() if count > before.get(name, 0)}
    return problems | ({"compiled after warm_up": ", ".join(late)} if late else {})


def signatures() -> dict[str, int]:
    """For how many types each function is compiled, or loaded from the cache."""
    return {
        f"{module}.{name}": len(function.signatures)
        for module in [name for name in sys.modules if name.startswith("compression")]
        for name, function in vars(sys.modules[module]).items()
        if isinstance(function, Dispatcher)
    }


@pytest.mark.parametrize("ranks", [1, 2, pytest.param(4, marks=pytest.mark.slow)])
def test_modules_do_what_torchrecs_do(ranks: int) -> None:
    for problems in run_ranks(differences, ranks, list(SCENARIOS)):
        assert not problems, "\n".join(f"{name}: {text}" for name, text in problems.items())
