"""What a step costs: bytes by kind, and time by the rules of the pipeline.

The step of `TrainPipelineSparseDist`: ids of the next batch start to travel with the forward pass; rows of this batch
are waited for before the interaction, so they are on the critical path; gradients of rows leave when the backward pass
of the interaction is done and travel while that of the bottom MLP runs, and so does the sync of hot rows; gradients of
the MLPs follow. All share one link. So

    step = compute + coding + messages
         + rows / link + max(0, ids / link - forward window)
         + max(0, (gradients + sync + dense) / link - backward window)

with the bytes of the busiest rank, sent or received, whichever are more. Coding is not overlapped with the link, which
is exact for two ranks and a little too much for more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from cache.constants import Constants
from cache.traffic import Curve, Table, Traffic, traffic

Floats = NDArray[np.float64]
HEADER_BYTES = 24
"""Before each message."""
PAYLOAD_BYTES = 20
"""Header of a coded payload; of one of ids:"""
ID_PAYLOAD_BYTES = 16
CHUNK_BYTES = 1 << 20
"""Raw bytes of a message of rows; what is more goes in several."""
INLINE_BYTES = 1 << 15
"""Ids up to so many bytes travel with their size in one message, else in two."""
UPDATE_PASSES = 6
"""Times that a row is read or written when it is updated: row, gradient and state."""


@dataclass(frozen=True)
class Setting:
    """The run of which the cost is asked."""

    ranks: int
    batch: int
    """Rows of a rank's batch."""
    link_mbit: float | None = None
    """Of a rank; None = as fast as measured."""
    dense_values: int = 0
    """Parameters of the MLPs."""
    dense: Literal["thin", "none"] = "thin"
    """How their gradients travel: by the thin exchange, or by an all-reduce in fp32."""
    goodput: float = 0.95
    """Share of `link_mbit` that is payload: TCP, IP and Ethernet headers take the rest."""

    def bytes_per_s(self, constants: Constants) -> float:
        measured = constants.goodput_mbit * 1e6 / 8
        return measured if self.link_mbit is None else min(measured, self.goodput * self.link_mbit * 1e6 / 8)


@dataclass(frozen=True)
class Pick:
    """What is chosen for one table."""

    hot: int = 0
    """Most frequent rows that every rank holds; all of them: the table is replicated wholly."""
    path: str = "row"
    chain: str = "huffman"


@dataclass(frozen=True)
class StepCost:
    """Bytes that a rank sends in a step by kind, mean over ranks, and milliseconds of a step."""

    ids: float
    rows: float
    gradients: float
    sync: float
    dense: float
    messages: float
    busiest: float
    """Bytes that the busiest rank sends or receives in the exchange of embeddings, over the mean."""
    compute_ms: float
    coding_ms: float
    messages_ms: float
    forward_ms: float
    """Of waiting for the link: before the interaction,"""
    backward_ms: float
    """and after it."""

    @property
    def wire_bytes(self) -> float:
        return self.ids + self.rows + self.gradients + self.sync + self.dense

    @property
    def step_ms(self) -> float:
        return self.compute_ms + self.coding_ms + self.messages_ms + self.forward_ms + self.backward_ms


def step_cost(
    tables: Sequence[Table],
    picks: Sequence[Pick],
    owners: Sequence[int],
    setting: Setting,
    constants: Constants,
    *,
    dense_sync: bool = False,
) -> StepCost:
    """Of a step.

    Args:
        owners: rank of each table's cold rows.
        dense_sync: the sync sends all hot rows, not only those that were touched.

    Raises:
        ValueError: not one pick and owner a table.
    """
    parts = []
    for table, pick in zip(tables, picks, strict=True):
        curve = Curve(table, setting.batch, setting.ranks, np.array([pick.hot], np.float64))
        parts.append((traffic(curve, pick.path, pick.chain, constants, dense_sync=dense_sync), curve))
    columns = {f.name: np.array([getattr(part, f.name)[0] for part, _ in parts]) for f in fields(Traffic)}
    totals = Traffic(**columns)
    hot = np.array([float(curve.touched[0] * curve.table.dim) for _, curve in parts])
    union = np.array([float(curve.union[0] * curve.table.dim) for _, curve in parts])
    return _step(totals, picks, np.asarray(owners), hot.sum(), union.sum(), setting, constants)


def _step(
    of: Traffic,
    picks: Sequence[Pick],
    owners: NDArray[np.int64],
    touched_values: float,
    union_values: float,
    setting: Setting,
    constants: Constants,
) -> StepCost:
    """Args: of: float64 [tables] each."""
    ranks, link = setting.ranks, setting.bytes_per_s(constants)
    peers, away = ranks - 1, (ranks - 1) / ranks
    some = of.rows > 0
    asked = len(np.unique(owners[some]))
    """Ranks that own cold rows."""
    chunks = np.ceil(max(4 * float(of.coded_values.sum()) / 2 / max(peers, 1) / CHUNK_BYTES, 1.0))
    # Of the ranks that own tables each has a message from and to every other rank.
    a_kind = away * asked
    sync_messages = peers if of.sync_touched.any() else 0
    header = HEADER_BYTES + PAYLOAD_BYTES
    ids = away * of.ids.sum() + a_kind * (2 * HEADER_BYTES + ID_PAYLOAD_BYTES)
    a_kind_ids = 2 * a_kind if ids > a_kind * INLINE_BYTES else a_kind
    rows, gradients = (away * one.sum() + a_kind * chunks * header for one in (of.rows, of.gradients))
    sync_header = sync_messages * (2 * header + 2 * HEADER_BYTES + ID_PAYLOAD_BYTES)
    sync = (of.sync_touched + of.sync_union + of.sync_ids).sum() + sync_header
    dense, dense_messages, dense_coding = _dense(setting, constants)
    messages = a_kind_ids + a_kind * 2 * chunks + 3 * sync_messages + dense_messages
    # The busiest rank, sent or received: an owner sends the rows that all others ask for.
    owned = [np.array([one[owners == rank].sum() for rank in range(ranks)]) for one in (of.rows, of.gradients, of.ids)]
    busy = [np.maximum(peers * one, one.sum() - one) for one in owned]
    means = [max(away * one.sum(), 1e-9) for one in owned]
    scale = [float(b.max() / m) for b, m in zip(busy, means, strict=True)]
    both = np.maximum(peers * (owned[0] + owned[1]), (owned[0] + owned[1]).sum() - owned[0] - owned[1])
    encode, decode = _coding(of, picks, constants)
    sample_us = constants.sample_us * setting.batch
    window = constants.overlap_us * setting.batch * 1e-6
    latency = constants.latency_us * 1e-6 * (2 * bool(a_kind) + 1)
    forward = rows * scale[0] / link + max(0.0, ids * scale[2] / link - window)
    backward = max(0.0, (gradients * scale[1] + sync + dense) / link - window)
    update = UPDATE_PASSES * 4e-9 * (touched_values + union_values) / constants.lookup_gb_s
    return StepCost(
        ids=float(ids),
        rows=float(rows),
        gradients=float(gradients),
        sync=float(sync),
        dense=float(dense),
        messages=float(messages),
        busiest=float(both.max() / max(away * (owned[0] + owned[1]).sum(), 1e-9)) if some.any() else 1.0,
        compute_ms=constants.fixed_ms + 1e-3 * sample_us + 1e3 * update,
        coding_ms=1e3 * (encode + decode + dense_coding),
        messages_ms=1e-3 * constants.message_us * float(messages),
        forward_ms=1e3 * (forward + latency),
        backward_ms=1e3 * (backward + latency),
    )


def _coding(of: Traffic, picks: Sequence[Pick], constants: Constants) -> tuple[float, float]:
    """Seconds of the mean rank to encode and to decode; gradients of hot rows by the chain of their table."""
    encode = decode = 0.0
    for chain in {pick.chain for pick in picks}:
        mine = np.array([pick.chain == chain for pick in picks])
        raw = 4 * float((of.coded_values + of.sync_values)[mine].sum())
        seconds = constants.coding_s(chain, raw)
        encode, decode = encode + seconds[0], decode + seconds[1]
    return encode, decode


def _dense(setting: Setting, constants: Constants) -> tuple[float, float, float]:
    """Bytes, messages and seconds of coding of the MLPs' gradients.

    An all-reduce sends 2 (W - 1) / W of them, by a ring or, as here, in two exchanges of slices.
    """
    ranks, values = setting.ranks, setting.dense_values
    away = (ranks - 1) / ranks
    if ranks == 1 or not values:
        return 0.0, 0.0, 0.0
    if setting.dense == "none":
        return 2 * away * 4 * values, 2.0 * (ranks - 1), 0.0
    messages = 2.0 * (ranks - 1)
    bytes_sent = 2 * away * values * constants.dense_bits / 8 + messages * (HEADER_BYTES + PAYLOAD_BYTES)
    encode, decode = constants.coding_s("bitpack", 4 * values)
    return bytes_sent, messages, encode * (away + 1 / ranks) + decode * 2 * away


def plain_cost(tables: Sequence[Table], setting: Setting, constants: Constants) -> StepCost:
    """Of TorchRec's own exchange in fp32, without a cache: ids and lengths of 4 bytes, pooled rows and their gradients.

    Owners are taken for evenly loaded: TorchRec's planner sees to that.
    """
    ranks, link = setting.ranks, setting.bytes_per_s(constants)
    away = (ranks - 1) / ranks
    lookups = setting.batch * sum(table.bag_length for table in tables)
    values = setting.batch * sum(table.dim for table in tables)
    ids = 4 * away * (lookups + setting.batch * len(tables))
    rows = gradients = 4 * away * values
    dense = 2 * away * 4 * setting.dense_values
    window = constants.overlap_us * setting.batch * 1e-6
    messages = 6.0 * (ranks - 1)
    return StepCost(
        ids=ids,
        rows=rows,
        gradients=gradients,
        sync=0.0,
        dense=dense,
        messages=messages,
        busiest=1.0,
        compute_ms=constants.local_fixed_ms + 1e-3 * constants.local_sample_us * setting.batch,
        coding_ms=0.0,
        messages_ms=1e-3 * constants.message_us * messages,
        forward_ms=1e3 * (rows / link + max(0.0, ids / link - window)),
        backward_ms=1e3 * max(0.0, (gradients + dense) / link - window),
    )
