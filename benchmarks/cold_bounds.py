"""How much wider the bound of rows may be when the hot rows are exact, next to TorchRec's fp32 on paired seeds:

python -m benchmarks.cold_bounds --data FOLDER --seeds 10 --out cold.json --set train.batch_size=256

With a replica the bound of rows touches cold lookups alone (docs/cache.md); gradients keep their bounds.
"""

from __future__ import annotations

from pathlib import Path

import click

from benchmarks.paired import arm, measure, thin_base


def numbers(text: str) -> list[float]:
    return [float(part) for part in text.split(",")]


@click.command()
@click.option("--data", required=True, help="Prepared data set.")
@click.option("--preset", default="demo")
@click.option("--set", "assignments", multiple=True, metavar="SECTION.KEY=VALUE")
@click.option("--seeds", default=10)
@click.option("--shares", default="0,0.01,0.05", help="Of hot rows in each table.")
@click.option("--levels", default="0.02,0.06,0.12", help="Bounds of rows.")
@click.option("--out", type=click.Path(path_type=Path), required=True)
def main(data: str, preset: str, assignments: tuple[str, ...], seeds: int, shares: str, levels: str, out: Path) -> None:
    """Measure all pairs of a share and a bound; the result is written after each."""
    base = thin_base(preset, assignments, data)
    arms = [
        arm(
            f"{share:.0%} hot, rows {level:.0%}",
            base,
            {"cache": {"hot_share": share}, "exchange": {"row_bound": level}},
            data,
        )
        for share in numbers(shares)
        for level in numbers(levels)
    ]
    measure(base, arms, seeds, data, out)


if __name__ == "__main__":
    main()
