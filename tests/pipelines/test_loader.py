"""The loader on planted row ids: which rank gets which row, and what is wrong with a damaged data set."""

import threading

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig

from pipelines.dataset import Dataset, DenseInfo, Manifest, PartInfo, SplitInfo, TableInfo, part_schema
from pipelines.errors import UserError
from pipelines.loader import Loader, make_kjt
from pipelines.order import Group
from pipelines.parts import PartReader

GROUP_ROWS = 64


def make_dataset(path, part_rows, *, list_rows=50):
    """Rows numbered in dense column I1 and in table C1; C2 holds row % 4 ids, all equal to row % list_rows."""
    total = sum(part_rows)
    parts = [PartInfo(path=f"train/part-{i:05d}.parquet", rows=n) for i, n in enumerate(part_rows)]
    manifest = Manifest(
        label="label",
        dense=[DenseInfo(name="I1"), DenseInfo(name="I2")],
        tables=[TableInfo(name="C1", rows=total), TableInfo(name="C2", rows=list_rows, multi_hot=True)],
        splits={"train": SplitInfo(rows=total, positives=total // 2, parts=parts)},
    )
    (path / "train").mkdir(parents=True)
    start = 0
    for part in parts:
        rows = np.arange(start, start + part.rows)
        columns = [
            pa.array((rows % 2).astype(np.uint8)),
            pa.array(rows.astype(np.float32)),
            pa.array((rows * 0.5).astype(np.float32)),
            pa.array(rows.astype(np.int32)),
            pa.array([[row % list_rows] * (row % 4) for row in rows], part_schema(manifest).field("C2").type),
        ]
        pq.write_table(pa.table(columns, part_schema(manifest)), path / part.path, row_group_size=GROUP_ROWS)
        start += part.rows
    (path / "manifest.json").write_text(manifest.model_dump_json())
    return Dataset(path)


def rewrite(dataset, change):
    """Replace the second part by change(its table)."""
    path = dataset.path / "train/part-00001.parquet"
    pq.write_table(change(pq.read_table(path)), path, row_group_size=GROUP_ROWS)


def replace_column(table, name, column):
    return table.set_column(table.schema.get_field_index(name), name, column)


def rows_of(batch, upto=None):
    return batch.dense_features[:upto, 0].long().tolist()


def loaders(dataset, world_size, batch_size=32, **options):
    options = {"shuffle": True, "seed": 3, "window_groups": 3, **options}
    return [
        Loader(dataset, "train", batch_size=batch_size, rank=rank, world_size=world_size, **options)
        for rank in range(world_size)
    ]


def global_rows(dataset, world_size, epoch, start=0, batch_size=32, steps=None):
    """Rows in the order in which the ranks together take them, each step's ranks in order."""
    per_rank = []
    for loader in loaders(dataset, world_size, batch_size):
        batches = loader.train_batches(epoch, start)
        per_rank.append([rows_of(batch) for batch, _ in zip(batches, range(steps or 10**9), strict=False)])
        batches.close()
    assert len({len(batches) for batches in per_rank}) == 1, "ranks differ in their number of batches"
    return [row for step in zip(*per_rank, strict=True) for batch in step for row in batch]


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    return make_dataset(tmp_path_factory.mktemp("data") / "set", [300, 7, 500, 193])


def test_batches_hold_what_the_files_hold(dataset):
    for shuffle in (False, True):
        (loader,) = loaders(dataset, 1, batch_size=100, shuffle=shuffle)
        seen = []
        for batch in loader.train_batches(0):
            rows = torch.tensor(rows_of(batch))
            seen += rows.tolist()
            assert batch.dense_features.dtype == batch.labels.dtype == torch.float32
            assert torch.equal(batch.dense_features[:, 1], rows * 0.5)
            assert torch.equal(batch.labels, (rows % 2).float())
            kjt = batch.sparse_features
            assert kjt.keys() == ["C1", "C2"] and kjt.stride() == 100
            assert kjt.values().dtype == kjt.lengths().dtype == torch.int32
            assert torch.equal(kjt["C1"].values(), rows.int())
            assert torch.equal(kjt["C1"].lengths(), torch.ones(100, dtype=torch.int32))
            assert torch.equal(kjt["C2"].lengths(), (rows % 4).int())
            assert torch.equal(kjt["C2"].values(), torch.repeat_interleave(rows % 50, rows % 4).int())
        assert sorted(seen) == list(range(1000))
        assert (seen == list(range(1000))) == (not shuffle)


# meta-pytorch/torchrec#4158, ray-project/ray#66085: one rank runs out of batches and the others wait for it.
@pytest.mark.parametrize("part_rows", [[640, 448], [1000], [5, 700, 1, 382]])
@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_all_ranks_stop_at_the_same_step(part_rows, world_size, tmp_path):
    dataset = make_dataset(tmp_path / "set", part_rows)
    for epoch in range(2):
        rows = global_rows(dataset, world_size, epoch)
        loader = loaders(dataset, world_size)[0]
        assert len(set(rows)) == len(rows) == loader.steps_per_epoch * 32 * world_size
        assert loader.left_out == sum(part_rows) - len(rows) < 32 * world_size


def test_the_sequence_of_rows_does_not_depend_on_the_number_of_ranks(dataset):
    one = global_rows(dataset, 1, epoch=1)
    for world_size in (2, 3, 4):
        other = global_rows(dataset, world_size, epoch=1)
        assert other == one[: len(other)]


# verl-project/verl#7401, huggingface/accelerate#2016: resume skips an epoch, or replays another order.
@pytest.mark.parametrize(("before", "after"), [(1, 1), (2, 2), (2, 1), (2, 3), (1, 4)])
@pytest.mark.parametrize("steps", [1, 5, 9])
def test_resume_goes_on_with_the_next_row(dataset, before, after, steps):
    whole = global_rows(dataset, 1, epoch=2)
    first = global_rows(dataset, before, epoch=2, steps=steps)
    second = global_rows(dataset, after, epoch=2, start=len(first))
    together = first + second
    assert together == whole[: len(together)] if len(together) <= len(whole) else together[: len(whole)] == whole
    left = loaders(dataset, after)[0].steps_left(len(first))
    assert len(second) == left * 32 * after
    assert 1000 - len(together) < 32 * after


def test_resume_at_the_end_of_an_epoch_yields_nothing_more(dataset):
    done = len(global_rows(dataset, 2, epoch=0))
    assert global_rows(dataset, 2, epoch=0, start=done) == []
    assert global_rows(dataset, 2, epoch=1) != global_rows(dataset, 2, epoch=0)


@pytest.mark.parametrize("start", [-1, 1001])
def test_a_start_outside_the_epoch_is_refused(dataset, start):
    with pytest.raises(ValueError, match="outside the epoch"):
        loaders(dataset, 1)[0].train_batches(0, start)


# meta-pytorch/torchrec#640: the last, partial batch is dropped or differs between ranks.
@pytest.mark.parametrize("batch_size", [300, 7, 2000])
@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_evaluation_scores_each_row_once(dataset, batch_size, world_size):
    per_rank = [list(loader.eval_batches()) for loader in loaders(dataset, world_size, batch_size)]
    assert len({len(batches) for batches in per_rank}) == 1
    rows = []
    for step in zip(*per_rank, strict=True):
        for batch, count in step:
            assert len(rows_of(batch)) == batch_size
            assert set(rows_of(batch)[count:]) <= {999}
            rows += rows_of(batch, count)
    assert rows == list(range(1000))


def test_a_split_smaller_than_a_step_is_one_clear_line(dataset):
    (loader,) = loaders(dataset, 1, batch_size=2000)
    with pytest.raises(UserError, match="'train' has 1000 rows, fewer than one step"):
        loader.train_batches(0)


@pytest.mark.parametrize("value", [-1, 1000, 2**31 - 1])
def test_an_id_outside_its_table_names_column_value_table_and_part(value, tmp_path):
    dataset = make_dataset(tmp_path / "set", [500, 500])
    ids = np.arange(500, 1000, dtype=np.int32)
    ids[77] = value
    rewrite(dataset, lambda table: replace_column(table, "C1", pa.array(ids)))
    with pytest.raises(
        UserError, match=rf"part-00001.parquet: column 'C1' has id {value}, outside its table of 1000 rows"
    ):
        list(loaders(dataset, 1)[0].train_batches(0))


def test_the_tables_of_the_model_decide_which_ids_fit(dataset):
    (loader,) = loaders(dataset, 1, table_rows={"C2": 49})
    with pytest.raises(UserError, match=r"column 'C2' has id 49, outside its table of 49 rows"):
        list(loader.train_batches(0))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.drop_columns(["C1"]), "no column 'C1'"),
        (
            lambda t: replace_column(t, "C1", t["C1"].cast(pa.int64())),
            "column 'C1' is int64, the manifest asks for int32",
        ),
        (lambda t: replace_column(t, "C2", t["C1"]), "column 'C2' is int32, the manifest asks for list<"),
        (lambda t: replace_column(t, "I1", t["I1"].cast(pa.float64())), "column 'I1' is double"),
        (lambda t: t.slice(1), "has 499 rows, the manifest says 500"),
    ],
)
def test_a_part_unlike_the_manifest_is_refused_at_once(change, message, tmp_path):
    dataset = make_dataset(tmp_path / "set", [500, 500])
    rewrite(dataset, change)
    with pytest.raises(UserError, match="part-00001.parquet: " + message):
        loaders(dataset, 1)


@pytest.mark.parametrize("column", [pa.array([None] + [1] * 499, pa.int32()), pa.array([[None]] + [[1]] * 499)])
def test_nulls_are_refused(column, tmp_path):
    dataset = make_dataset(tmp_path / "set", [500, 500])
    name = "C2" if pa.types.is_list(column.type) else "C1"
    rewrite(
        dataset, lambda t: replace_column(t, name, column.cast(pa.list_(pa.int32()) if name == "C2" else pa.int32()))
    )
    with pytest.raises(UserError, match=f"part-00001.parquet: column '{name}' has nulls"):
        list(loaders(dataset, 1)[0].train_batches(0))


def test_a_truncated_part_is_named(tmp_path):
    dataset = make_dataset(tmp_path / "set", [500, 500])
    path = dataset.path / "train/part-00001.parquet"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(UserError, match=r"part-00001.parquet: not a readable Parquet file"):
        loaders(dataset, 1)


def test_a_rank_reads_only_the_row_groups_that_hold_its_rows(tmp_path):
    """Row group 0 is damaged; with batches as large as a row group, only rank 0 of 2 reads it."""
    dataset = make_dataset(tmp_path / "set", [4 * GROUP_ROWS])
    path = dataset.path / "train/part-00000.parquet"
    group = pq.ParquetFile(path).metadata.row_group(0)
    data = bytearray(path.read_bytes())
    start, end = group.column(1).dictionary_page_offset or group.column(1).data_page_offset, group.column(4)
    data[start : end.data_page_offset + 20] = b"\xff" * (end.data_page_offset + 20 - start)
    path.write_bytes(data)
    damaged, whole = (loader.train_batches(0) for loader in loaders(dataset, 2, GROUP_ROWS, shuffle=False))
    assert [rows_of(batch) for batch in whole] == [list(range(64, 128)), list(range(192, 256))]
    with pytest.raises(UserError, match=r"part-00000.parquet"):
        list(damaged)


def test_reader_skips_groups_without_a_row_and_keeps_the_order(dataset):
    reader = PartReader(dataset, "train", dataset.table_rows)
    groups = [Group(0, 0, 64), Group(0, 1, 64), Group(2, 0, 64)]
    columns = reader.read(groups, np.array([130, 3, 3, 191]))
    assert columns.dense[:, 0].tolist() == [309.0, 3.0, 3.0, 370.0]


def prefetch_threads():
    return [thread for thread in threading.enumerate() if thread.name == "thinwire-prefetch"]


@pytest.mark.parametrize("error", [None, KeyboardInterrupt, RuntimeError])
def test_leaving_the_loop_ends_the_threads(dataset, error):
    for make in (lambda loader: loader.train_batches(0), lambda loader: loader.eval_batches()):
        batches = make(loaders(dataset, 1, batch_size=10, prefetch=2)[0])
        next(batches)
        assert prefetch_threads()
        if error:
            with pytest.raises(error):
                batches.throw(error)
        else:
            batches.close()
        assert not prefetch_threads()


def test_an_exhausted_or_failed_iterator_leaves_no_thread(dataset):
    list(loaders(dataset, 1)[0].train_batches(0))
    with pytest.raises(UserError):
        list(loaders(dataset, 1, table_rows={"C1": 10})[0].eval_batches())
    assert not prefetch_threads()


def collection():
    tables = [EmbeddingBagConfig(name=n, embedding_dim=4, num_embeddings=10, feature_names=[n]) for n in ("A", "B")]
    return EmbeddingBagCollection(tables=tables)


def ints(*values):
    return np.array(values, np.int32)


# meta-pytorch/torchrec#4638, meta-pytorch/torchrec#1756: odd jagged batches crash late.
def test_empty_batches_and_empty_bags_work():
    nothing = make_kjt(["A", "B"], [ints(), ints()], [ints(), ints()], 0)
    assert nothing.stride() == 0 and nothing.length_per_key() == [0, 0]
    assert nothing["B"].values().numel() == 0
    empty_bags = make_kjt(["A", "B"], [ints(0, 0), ints(2, 1)], [ints(), ints(1, 2, 3)], 2)
    pooled = collection()(empty_bags)
    assert torch.equal(pooled["A"], torch.zeros(2, 4))
    assert pooled["B"].abs().sum() > 0


@pytest.mark.parametrize(
    ("lengths", "values", "message"),
    [
        ((ints(1, 1), ints(1, 1, 1)), (ints(1, 2), ints(1, 2, 3)), "feature 'B' has 3 lengths for a batch of 2 rows"),
        ((ints(1, 1), ints(3, -1)), (ints(1, 2), ints(1, 2)), "feature 'B' has a negative length"),
        ((ints(2, 1), ints(1, 1)), (ints(1, 2), ints(1, 2)), "feature 'A' has 2 ids, but its lengths sum to 3"),
        ((ints(1, 1),), (ints(1, 2), ints(1, 2)), "2 keys, 1 arrays of lengths"),
    ],
)
def test_wrong_lengths_are_refused_with_the_name_of_the_feature(lengths, values, message):
    with pytest.raises(ValueError, match=message):
        make_kjt(["A", "B"], lengths, values, 2)


def test_more_parts_than_stay_open(tmp_path, monkeypatch):
    monkeypatch.setattr("pipelines.parts._OPEN_PARTS", 2)
    dataset = make_dataset(tmp_path / "set", [70] * 5)
    assert sorted(global_rows(dataset, 1, epoch=0, batch_size=35)) == list(range(350))


def test_two_iterators_of_one_loader_do_not_disturb_each_other(dataset):
    (loader,) = loaders(dataset, 1)
    pairs = zip(loader.train_batches(0), loader.train_batches(1), loader.train_batches(0), strict=True)
    first, second, again = ([row for b in batches for row in rows_of(b)] for batches in zip(*pairs, strict=True))
    assert first == again != second
