"""TorchRec's own quantised communication (QComms): the peer that a codec is measured against."""

from __future__ import annotations

import torch
from torchrec.distributed.fbgemm_qcomm_codec import CommType, QCommsConfig, get_qcomm_codecs_registry
from torchrec.distributed.types import QuantizedCommCodecs

from pipelines.errors import UserError

CODECS = ("fp16", "bf16", "fp8", "int8")
_FP8_ROW = 128
"""Values that share a scale under fp8, as in TorchRec's tests."""


def qcomm_codecs(codec: str, device: torch.device) -> dict[str, QuantizedCommCodecs] | None:
    """A sharder's `qcomm_codecs_registry` that sends embeddings and gradients as `codec`; None if it is not one of
    `CODECS`.

    Raises:
        UserError: TorchRec cannot do it on this device.
    """
    if codec not in CODECS:
        return None
    if codec == "bf16" and device.type == "cpu":
        # TorchRec itself would send fp16 instead, with a warning.
        raise _refusal(codec, device, "gloo has no bfloat16")
    kind = CommType(codec)
    row = _FP8_ROW if codec == "fp8" else None
    config = QCommsConfig(forward_precision=kind, backward_precision=kind, fp8_quantize_dim=row)
    registry = get_qcomm_codecs_registry(config, device=device)
    assert registry is not None
    _try(codec, registry, device)
    return registry


def _try(codec: str, registry: dict[str, QuantizedCommCodecs], device: torch.device) -> None:
    """Find out now what would else fail in the first step."""
    example = torch.ones(_FP8_ROW, device=device)
    try:
        for codecs in registry.values():
            for one in (codecs.forward, codecs.backward):
                context = one.create_context()
                one.decode(one.encode(example, context), context)
    except (RuntimeError, NotImplementedError, AssertionError) as error:
        raise _refusal(codec, device, " ".join(str(error).split())[:160]) from error


def _refusal(codec: str, device: torch.device, reason: str) -> UserError:
    return UserError(
        f"TorchRec cannot send {codec} on {device.type}: {reason}",
        where="exchange.codec",
        fix="use fp16 or int8" if device.type == "cpu" else "use another codec",
    )
