"""The settings that data, model and training read. `app.config` puts them together into a run's configuration."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from pipelines.errors import UserError

Positive = Annotated[int, Field(gt=0)]
NonNegative = Annotated[int, Field(ge=0)]
Rate = Annotated[float, Field(gt=0)]


class Options(BaseModel):
    """A section: an unknown key or a wrong type is an error, and the text under a field is its documentation."""

    model_config = ConfigDict(extra="forbid", strict=True, use_attribute_docstrings=True, validate_default=True)


class SyntheticOptions(Options):
    rows: Positive = 1_000_000
    """Rows in all, the valid split included."""
    valid_share: Annotated[float, Field(gt=0, lt=1)] = 0.1
    """Share of the rows that goes to the valid split."""
    seed: int = 0
    """The same seed gives the same bytes."""


class DataOptions(Options):
    path: str | None = None
    """Folder written by `thinwire prepare` or `thinwire synth`. A relative path counts from the working folder of the
    command and must be the same place on every node."""
    synthetic: SyntheticOptions | None = None
    """Train on made-up data instead of `path`: the run is tagged synthetic."""
    train_split: str = "train"
    """Split to train on."""
    valid_split: str = "valid"
    """Split to evaluate on."""
    shuffle: bool = True
    """Permute row groups, and rows inside windows of row groups, anew in each epoch; off = the order on disk."""
    window_groups: Positive = 8
    """Row groups (16,384 rows each) in a shuffle window."""
    prefetch: Positive = 4
    """Batches that the loader keeps ready."""


class ModelOptions(Options):
    arch: Literal["dlrm", "dcn", "projection"] = "dlrm"
    """Interaction: pairwise dot products, low-rank cross network (DCN v2), or dot products of two projections."""
    embedding_dim: Positive = 16
    """Dimension D of every embedding as the interaction sees it."""
    table_dims: dict[str, Positive] = {}
    """Other dimensions by table name; such a table is projected to `embedding_dim` after the lookup."""
    table_rows: dict[str, Positive] = {}
    """More rows than the data set has ids, by table name. Fewer is an error."""
    dense_layers: list[Positive] = [64]
    """Hidden layers of the bottom MLP; a last layer of `embedding_dim` is added."""
    over_layers: list[Positive] = [128, 64]
    """Hidden layers of the top MLP; a last layer of 1 is added."""
    dcn_layers: Positive = 3
    """Cross layers (arch dcn)."""
    dcn_rank: Positive = 64
    """Rank of each cross layer (arch dcn)."""
    projection_outputs: Positive = 8
    """Vectors of `embedding_dim` that each projection branch makes (arch projection)."""
    pooling: Literal["sum", "mean"] = "sum"
    """How a bag of embeddings becomes one vector."""


class OptimOptions(Options):
    sparse: Literal["rowwise_adagrad", "sgd", "adam"] = "rowwise_adagrad"
    """Optimiser of the tables, fused into the backward pass. FBGEMM has Adam on GPUs only."""
    sparse_lr: Rate = 0.05
    """Learning rate of the tables."""
    dense: Literal["adam", "adamw", "adagrad", "sgd"] = "adam"
    """Optimiser of the MLPs."""
    dense_lr: Rate = 0.001
    """Learning rate of the MLPs."""
    eps: Rate = 1e-8
    """Added to the denominator by Adagrad and Adam."""
    warmup_steps: NonNegative = 0
    """Both learning rates rise linearly over so many steps."""
    decay_start: NonNegative = 0
    """Step at which both learning rates begin to fall (only with `decay_steps`)."""
    decay_steps: NonNegative = 0
    """Steps of the quadratic decay to zero; 0 = no decay."""


class ShardOptions(Options):
    type: Literal["table_wise", "column_wise", "row_wise", "table_row_wise"]
    """How the table is cut. On CPU TorchRec has no row-wise kinds for pooled embeddings. Under row-wise Adagrad
    column_wise keeps one accumulator a column shard, which changes the numbers a little."""
    ranks: list[NonNegative] = []
    """Ranks that hold it: one for table_wise and table_row_wise, one a column shard for column_wise, else empty."""


class ShardingOptions(Options):
    tables: dict[str, ShardOptions] = {}
    """Stated placement by table name; TorchRec's planner places the others."""
    device_memory_gb: Rate | None = None
    """Memory a rank may give to tables; default: what TorchRec assumes for the device."""


Share = Annotated[float, Field(ge=0, lt=1)]
Bound = Annotated[float, Field(ge=0)]
Path = Literal["auto", "row", "pooled", "torchrec"]
Chain = Literal["auto", "raw", "lossless", "bitpack", "huffman", "rans", "dedup"]
BETWEEN_HOSTS_MBIT = 10_000.0


class TableExchange(Options):
    path: Path | None = None
    """Default: that of all tables."""
    row_bound: Bound | None = None
    """Default: that of all tables. 0 = bit for bit."""
    gradient_bound: Bound | None = None
    """Default: that of all tables. 0 = bit for bit."""
    bounds: Literal["relative", "absolute"] = "relative"
    """Whether the two bounds are shares of the range of the table's values in a message, or absolute."""
    chain: Chain | None = None
    """Default: that of all tables."""


class ExchangeOptions(Options):
    codec: Literal["auto", "thin", "none", "fp16", "bf16", "fp8", "int8"] = "auto"
    """How embeddings and their gradients are exchanged. thin = distinct rows only, compressed under error bounds;
    none = TorchRec's own exchange in fp32; the others = TorchRec's quantised communication (QComms), of which CPU has
    fp16 and int8. auto = thin where its cost law says that it pays, which it does not within one host, else none."""
    link_mbit: Rate | None = None
    """Rate of a worker's link in Mbit/s, by which `codec` and `chain` decide when they are auto; default: 10,000."""
    row_bound: Share = 0.01
    """thin: largest error of a row, as a share of the range of its table's values in a message; 0 = bit for bit."""
    gradient_bound: Share = 0.005
    """thin: the same for gradients."""
    path: Path = "auto"
    """thin: row = distinct rows travel, and bags are pooled where they are needed; pooled = the owner pools; torchrec =
    TorchRec's own exchange; auto = row or pooled, whichever takes fewer bytes by the counts of the data set."""
    chain: Chain = "auto"
    """thin: how a message is coded, those of `dense` too; auto = what takes the least time by encode and decode speed,
    ratio and link; for `dense`, by the link alone."""
    stochastic: bool = False
    """thin: round gradients at random to one of the two nearest codes, so that their expected value is the true one."""
    tables: dict[str, TableExchange] = {}
    """thin: what differs for single tables, by name."""
    verify: bool = False
    """thin: decode each message where it is encoded, and stop unless every value is within its bound. For debugging."""
    timeout_s: Rate = 300
    """thin: a worker that waits longer for a message ends the run with an error that names it."""
    schedule: Literal["torchrec", "duplex"] = "torchrec"
    """How an all-to-all is sent: as TorchRec does, or with every receive posted before any send, which lets gloo use
    both directions of a link at once."""
    dense: Literal["none", "thin", "fp16", "bf16", "powersgd"] = "none"
    """How the MLPs' gradients are averaged: none = DDP's all-reduce in fp32; thin = by the messages and the codec of
    the thin exchange; the others by torch's own hooks: half the bits, or PowerSGD (arXiv 1905.13727), matrices of a
    low rank with what they miss sent later."""
    dense_bound: Share = 0.002
    """thin: largest error of a gradient that is sent, as a share of its parameter's range in a message; 0 = exact."""
    dense_rank: Positive = 1
    """Rank r of PowerSGD: r (n + m) values for a matrix of n x m, or all where that is no less than half of them."""
    dense_start: Annotated[int, Field(ge=2)] = 100
    """Steps of fp32 before PowerSGD begins, counted anew after a restart."""

    @model_validator(mode="after")
    def _only_for_powersgd(self) -> ExchangeOptions:
        for key in ("dense_rank", "dense_start"):
            if self.dense != "powersgd" and getattr(self, key) != type(self).model_fields[key].default:
                raise UserError(
                    f"is for PowerSGD, but exchange.dense is {self.dense}",
                    where=f"exchange.{key}",
                    fix="set exchange.dense=powersgd, or leave it out",
                )
        return self


def link_bytes(options: ExchangeOptions) -> float:
    """Bytes per second of a worker's link between hosts."""
    return (options.link_mbit or BETWEEN_HOSTS_MBIT) * 1e6 / 8


class BoundOptions(Options):
    shape: Literal["constant", "step", "linear", "log"] = "constant"
    """thin: the bounds of rows are multiplied by what falls from `start` to 1 over `steps`: step = in equal stairs
    (arXiv 2407.04272 has 10, from 2), linear, log = fast at first; constant = by 1."""
    start: Rate = 2.0
    """The multiplier at the first step."""
    steps: NonNegative = 0
    """At which the multiplier is 1, and stays so."""
    stairs: Positive = 10
    """Of step."""
    gradient_start: Rate = 1.0
    """The same for the bounds of gradients; 1 = they do not change."""
    loop_every: NonNegative = 0
    """Steps between two shadow evaluations: the last batch once more, with bounds and without. While the difference of
    the losses is within its noise the bounds of rows are widened, and narrowed at once when it is not. A multiple of
    `train.log_every`; 0 = none."""
    loop_tolerance: Rate = 1e-4
    """Loss, as a share of the loss, that the bounds of rows may cost; above it they are narrowed."""
    loop_noise: Rate = 2.0
    """Standard errors of a difference that are taken for noise."""
    loop_widest: Annotated[float, Field(ge=1)] = 16.0
    """Largest multiplier of the loop."""


class CacheOptions(Options):
    hot_rows: dict[str, NonNegative] = {}
    """By table name, how many of its most frequent rows every worker holds: ids are ranked by frequency, so these are
    its first ones. As many as the table has rows = it is replicated wholly."""
    hot_share: Annotated[float, Field(ge=0, le=1)] = 0.0
    """The same as a share of the rows of each table that `hot_rows` does not name, the rows for missing and unknown ids
    besides; 0 = none."""
    audit_every: NonNegative = 100
    """Steps between two comparisons of the workers' hot rows and optimiser state by checksum; a difference ends the
    run with an error that names the worker, table and rows. 0 = none."""
    adapt_every: NonNegative = 0
    """Steps between two choices of the hot rows, as many of each table as before, by the lookups since the last one;
    0 = they stay. For data whose frequent rows change."""
    adapt_cost: Annotated[float, Field(ge=0)] = 1.0
    """What the move of a row to one worker costs, in fetches of that row. It moves in only if the workers would have
    fetched it more often, by this times their number, than the row that it replaces: see docs/cache.md."""


class TrainOptions(Options):
    batch_size: Positive = 2048
    """Rows a rank takes in a step; the global batch is this times the number of workers."""
    epochs: Positive = 1
    """Passes over the train split."""
    max_steps: Positive | None = None
    """Stop after so many steps, whatever the epochs say."""
    seed: int = 0
    """Of the initial weights and of the data order. Neither depends on the number of workers or the sharding."""
    log_every: Positive = 20
    """Steps between two logged points."""
    eval_every: NonNegative = 0
    """Steps between two evaluations; 0 = at the end of each epoch. The last step is always evaluated."""
    checkpoint_every: NonNegative = 0
    """Steps between two checkpoints; 0 = at the end of each epoch. The last step always makes one."""
    keep_checkpoints: Positive = 2
    """Newest checkpoints that stay."""
    threads: Positive | None = None
    """Torch threads a worker on CPU; default: the cores that it was given."""
