"""The bytes that a rank sends to other ranks, by what they are for."""

from __future__ import annotations

import torch

KINDS = ("sizes", "lengths", "ids", "output_dist", "gradients", "replica", "dense", "other")
"""Input dist: `sizes` of the messages, bag `lengths`, `ids`; `output_dist`: pooled embeddings in the forward pass;
`gradients` of them in the backward pass; `replica`: gradients of hot rows, which rows they are, and the rows themselves
where they move; `dense`: all-reduce of the MLPs' gradients; `other`: the loss for the log."""
EXCHANGE = KINDS[:6]
"""What the embedding exchange sends."""


class WireBytes:
    """Payload bytes sent since the last `take`, by kind. Not counted: headers of TCP, IP and Ethernet, and of gloo."""

    def __init__(self) -> None:
        self._bytes = dict.fromkeys(KINDS, 0)

    def add(self, kind: str, count: int) -> None:
        self._bytes[kind] += count

    def take(self) -> torch.Tensor:
        """Float64 [kinds], and begin again at 0."""
        taken = torch.tensor([float(self._bytes[kind]) for kind in KINDS], dtype=torch.float64)
        self._bytes = dict.fromkeys(KINDS, 0)
        return taken


def wire_metrics(bytes_a_step: torch.Tensor) -> dict[str, float]:
    """Metrics in KB (1000 bytes) from float64 [kinds], with sums over the exchange and over all."""
    values = dict(zip(KINDS, (bytes_a_step / 1000).tolist(), strict=True))
    sums = {"exchange": sum(values[kind] for kind in EXCHANGE), "total": sum(values.values())}
    return {f"wire/{kind}_kb": value for kind, value in (values | sums).items()}
