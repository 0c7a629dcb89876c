"""Draws docs/kernels.png: what memory traffic allows. `python -m benchmarks.kernels.roofline FILE`."""

from __future__ import annotations

import sys

import matplotlib as mpl

mpl.use("agg")
import matplotlib.pyplot as plt

from benchmarks.kernels.traffic import BANDWIDTH, Stage, decode_stages, encode_stages, limit

RATIO = {"bitpack": 8.0, "dedup": 16.0}
"""Of rows as of trained tables at a bound of 3 % of their range, about."""
DISTINCT = 0.25


def chains() -> dict[str, list[Stage]]:
    """Stages of each chain and direction."""
    found = {}
    for chain, ratio in RATIO.items():
        found[f"{chain}\nencode"] = encode_stages(chain, ratio, DISTINCT)
        found[f"{chain}\ndecode"] = decode_stages(chain, ratio, DISTINCT)
    return found


def draw(path: str) -> None:
    """Bytes moved by each stage, and the throughput that they allow."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.6), layout="constrained")
    every = chains()
    kernels = list(dict.fromkeys(stage.kernel for stages in every.values() for stage in stages))
    for i, stages in enumerate(every.values()):
        bottom = 0.0
        for stage in stages:
            colour = f"C{kernels.index(stage.kernel) % 10}"
            hatch = "//" if kernels.index(stage.kernel) >= 10 else None
            left.bar(i, stage.moved, bottom=bottom, color=colour, hatch=hatch, edgecolor="white", width=0.6)
            if stage.moved > 0.2:
                left.text(i, bottom + stage.moved / 2, stage.kernel, ha="center", va="center", fontsize=7)
            bottom += stage.moved
    left.set_xticks(range(len(every)), list(every))
    left.set_ylabel("bytes moved for a byte of float32 input")
    for name, bandwidth in BANDWIDTH.items():
        moved = [1 + 0.05 * k for k in range(101)]
        right.plot(moved, [bandwidth / m / 1e9 for m in moved], label=f"{name}, {bandwidth / 1e12:.2f} TB/s")
        for label, stages in every.items():
            x, y = sum(stage.moved for stage in stages), limit(stages, bandwidth) / 1e9
            right.plot(x, y, "o", color="black", markersize=4)
            if name == "H200":
                right.annotate(label.replace("\n", " "), (x, y), xytext=(4, 6), textcoords="offset points", fontsize=8)
    right.set(xlabel="bytes moved for a byte of input", ylabel="GB/s of input, at most", yscale="log")
    right.legend()
    figure.suptitle("A model of memory traffic, not a measurement: no kernel was timed on a GPU")
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    draw(sys.argv[1])
