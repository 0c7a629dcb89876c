"""A stream whose frequent rows change half-way: hot rows follow within one interval if they may, and else do not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from app.config import load_config
from pipelines.dataset import Dataset
from pipelines.run_state import RunState
from pipelines.synthetic import SynthOptions, write_synthetic
from pipelines.train import train_in_windows
from tests.pipelines.test_hot_rows import Hooks
from tests.ranks import run_ranks

pytestmark = [pytest.mark.usefixtures("compiled"), pytest.mark.xdist_group("hot_rows")]
BATCH, RANKS, EVERY, INTERVALS = 128, 2, 10, 4
ROWS = BATCH * RANKS * EVERY * INTERVALS


@pytest.fixture(scope="module")
def drifting(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """The ids of a table of 1,000 rows are turned round in the second half, so the last become the most frequent."""
    out = tmp_path_factory.mktemp("data") / "drifting"
    write_synthetic(out, SynthOptions(rows=int(ROWS / 0.9) + 1, tables=2, dense=2, rows_per_table=[1000, 1000]))
    before, start = Dataset(out), 0
    for part in before.split("train").parts:
        table = pq.read_table(out / part.path)
        late = np.arange(start, start + part.rows) >= ROWS // 2
        start += part.rows
        for name in before.table_rows:
            ids = table[name].to_numpy()
            turned = np.where(late, before.table_rows[name] - 1 - ids, ids).astype(np.int32)
            column = table.schema.get_field_index(name)
            table = table.set_column(column, table.schema.field(name), pa.array(turned))
        pq.write_table(table, out / part.path, row_group_size=16_384)
    return Dataset(out)


def train(data: str, out: str, *assignments: str) -> dict[str, Any]:
    small = [f"train.batch_size={BATCH}", "model.embedding_dim=8", "model.dense_layers=[8]", "model.over_layers=[8]"]
    run = [f"train.log_every={EVERY}", f"train.max_steps={EVERY * INTERVALS}", "data.shuffle=false"]
    hooks = Hooks(Path(out))
    config = load_config(assignments=[*small, *run, "cache.hot_share=0.1", *assignments])
    for _ in train_in_windows(RunState(config.job(data), hooks, torch.device("cpu"))):
        pass
    found = {key: hooks.series(key) for key in ("cache/hit_rate", "cache/replaced", "train/loss")}
    return found | {"said": hooks.said}


def on_a_rank(data: str, out: str) -> dict[str, Any]:
    adapt = f"cache.adapt_every={EVERY}"
    return {
        "fixed": train(data, out),
        "adapted": train(data, out, adapt),
        "too dear": train(data, out, adapt, "cache.adapt_cost=1000"),
    }


def test_the_hit_rate_recovers_within_one_interval(drifting: Dataset, tmp_path: Path) -> None:
    for rank in run_ranks(on_a_rank, RANKS, str(drifting.path), str(tmp_path)):
        fixed, adapted, dear = (rank[arm]["cache/hit_rate"] for arm in ("fixed", "adapted", "too dear"))
        assert min(fixed[:2]) > 0.5 and max(fixed[2:]) < 0.2, "the frequent ids did change"
        assert adapted[:3] == pytest.approx(fixed[:3], abs=0.05), "nothing is known of them in the third interval"
        assert adapted[3] > 0.9 * fixed[0]
        assert rank["adapted"]["cache/replaced"][1] < 0.5 * rank["adapted"]["cache/replaced"][2]
        assert dear == fixed and set(rank["too dear"]["cache/replaced"]) == {0.0}
        assert "step 30: 0 of 173 hot rows replaced" in rank["too dear"]["said"]
        assert rank["adapted"]["train/loss"] == pytest.approx(rank["fixed"]["train/loss"], rel=1e-6)
