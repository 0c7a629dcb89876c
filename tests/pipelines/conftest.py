from pathlib import Path

import pytest

from pipelines.dataset import Dataset
from pipelines.synthetic import SynthOptions, write_synthetic


@pytest.fixture(scope="session")
def small_dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """6 tables, one of them multi-hot, 5,400 train and 600 valid rows."""
    out: Path = tmp_path_factory.mktemp("data") / "small"
    options = SynthOptions(
        rows=6_000, tables=6, dense=4, multi_hot={"C3": 3.0}, rows_per_table=[5, 40, 300, 80, 9, 700]
    )
    write_synthetic(out, options)
    return Dataset(out)
