"""A model, and no measurement: bytes of device memory that each stage moves for a byte of float32 input.

Every access goes to memory once; caches, launches and instructions cost nothing. So it says what a stage can do at
most, by the bandwidth of the device.
"""

from __future__ import annotations

from typing import NamedTuple

BANDWIDTH = {"H200": 4.8e12, "A100 80 GB": 2.04e12}
"""Bytes per second, by the vendor's data sheets."""
_RECORDS = 3 * 4 * 2 / 4096
"""What is kept of a block of 1024 values, written and read."""


class Stage(NamedTuple):
    kernel: str
    moved: float
    """Bytes for a byte of input."""


def encode_stages(chain: str, ratio: float, distinct: float = 1.0, *, relative: bool = False) -> list[Stage]:
    """Stages of encoding.

    Args:
        chain: "bitpack" or "dedup".
        ratio: raw over payload bytes.
        distinct: share of rows that are distinct, of dedup; their codes have a byte each.
        relative: whether ranges are looked for first.
    """
    found = [Stage("find_ranges", 1.0)] if relative else []
    if chain == "dedup":
        found += [
            Stage("count_patches", 1.0),
            Stage("write_codes", 1.25),
            Stage("match_rows", 0.5),  # the row, and the one it is compared with
            Stage("number_rows, refer_rows", 0.1),
        ]
    found += [Stage("measure_blocks", 1.0 + _RECORDS)]
    if chain == "dedup":
        found += [Stage("measure_streams", 0.25 * distinct), Stage("write_streams", 0.25 * distinct + 1 / ratio)]
    else:
        found += [Stage("write_blocks", 1.0 + 1 / ratio + _RECORDS)]
    return [*found, Stage("write_checksums", 1 / ratio)]


def decode_stages(chain: str, ratio: float, distinct: float = 1.0) -> list[Stage]:
    """Stages of decoding; see `encode_stages`."""
    found = [Stage("check_checksums", 1 / ratio)]
    if chain == "dedup":
        return [*found, Stage("read_streams", 1 / ratio + 0.5 * distinct), Stage("expand_rows", 1.5)]
    return [*found, Stage("read_blocks", 1.0 + 1 / ratio + _RECORDS)]


def limit(stages: list[Stage], bandwidth: float) -> float:
    """Input bytes per second that memory of this bandwidth allows."""
    return bandwidth / sum(stage.moved for stage in stages)
