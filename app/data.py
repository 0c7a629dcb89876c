"""The data set that a run trains on."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from filelock import FileLock

from app.config import RunConfig
from app.storage import local_storage
from pipelines.dataset import MANIFEST, Dataset
from pipelines.errors import UserError
from pipelines.synthetic import SynthOptions, write_synthetic


def open_dataset(config: RunConfig, progress: Callable[[str, int, int], None] | None = None) -> Dataset:
    """The data set at `data.path`, or the synthetic one, made on first use below `run.storage`.

    Raises:
        UserError: no data are named, or the path holds none. Never a silent stand-in.
    """
    path, synthetic = config.data.path, config.data.synthetic
    if path is not None and synthetic is not None:
        raise UserError(
            f"both data.path ({path}) and data.synthetic are set",
            where="data",
            fix="set data.synthetic=null to train on the path",
        )
    if path is not None:
        return Dataset(path)
    if synthetic is None:
        raise UserError(
            "no data set is named",
            where="data.path",
            fix="give --data FOLDER, or --set data.synthetic.rows=100000 to train on made-up data",
        )
    out = (
        local_storage(config.run.storage)
        / "synthetic"
        / f"{synthetic.rows}-rows-{synthetic.valid_share}-valid-seed-{synthetic.seed}"
    )
    out.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(out.parent / f"{out.name}.lock"):
        if not (out / MANIFEST).is_file():
            options = SynthOptions(rows=synthetic.rows, valid_share=synthetic.valid_share, seed=synthetic.seed)
            advance = partial(progress, "synthetic data") if progress else None
            write_synthetic(out, options, overwrite=True, progress=advance)
    return Dataset(out)
