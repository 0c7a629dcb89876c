"""What a step costs: bytes by kind, and time by the rules of the pipeline.

The step of `TrainPipelineSparseDist`: ids of the next batch start to travel with the forward pass; rows of this batch
are waited for before the interaction, so they are on the critical path; gradients of rows leave when the backward pass
of the interaction is done and travel while that of the bottom MLP runs, and so do those of hot rows; gradients of the
MLPs follow. The sums for hot rows leave when the backward pass is over, and are waited for when the next step reads hot
rows, after its bottom MLP. All share one link. So

    step = compute + coding + messages
         + rows / link + max(0, ids / link - forward window)
         + max(0, (gradients + sync of touched rows + dense) / link - backward window)
         + max(0, sums of the sync / link - forward window)

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
from cache.lookups import Curve, Table
from cache.traffic import Traffic, traffic

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
    parts, hot_values = [], 0.0
    for table, pick in zip(tables, picks, strict=True):
        curve = Curve(table, setting.batch, setting.ranks, np.array([pick.hot], np.float64))
        parts.append(traffic(curve, pick.path, pick.chain, constants, dense_sync=dense_sync))
        hot_values += table.dim * float(curve.touched[0] + curve.union[0])
    of = Traffic(**{f.name: np.array([getattr(part, f.name)[0] for part in parts]) for f in fields(Traffic)})
    if len(owners) != len(tables):
        raise ValueError(f"{len(owners)} owners of {len(tables)} tables")
    sent = _sent(of, np.asarray(owners), setting, constants)
    window = 1e-6 * constants.overlap_us * setting.batch
    latency, link = 1e-6 * constants.latency_us, setting.bytes_per_s(constants)
    forward = sent.busy_rows / link + max(0.0, sent.busy_ids / link - window) + 2 * latency * bool(sent.rows)
    backward = max(0.0, (sent.busy_gradients + sent.sync_early + sent.dense) / link - window) + latency
    # A forward pass takes about half of a backward pass.
    backward += max(0.0, sent.sync_late / link - window / 2) + latency * bool(sent.sync_late)
    update = UPDATE_PASSES * 4e-9 * hot_values / constants.lookup_gb_s
    mean = max(sent.rows + sent.gradients, 1e-9)
    fixed = constants.fixed_ms + constants.hot_fixed_ms * any(pick.hot for pick in picks)
    return StepCost(
        ids=sent.ids,
        rows=sent.rows,
        gradients=sent.gradients,
        sync=sent.sync_early + sent.sync_late,
        dense=sent.dense,
        messages=sent.messages,
        busiest=(sent.busy_rows + sent.busy_gradients) / mean if sent.rows else 1.0,
        compute_ms=fixed + 1e-3 * constants.sample_us * setting.batch + 1e3 * update,
        coding_ms=1e3 * (_coding_s(of, picks, constants) + _dense_coding_s(setting, constants)),
        messages_ms=1e-3 * constants.message_us * sent.busy_messages,
        forward_ms=1e3 * forward,
        backward_ms=1e3 * backward,
    )


@dataclass(frozen=True)
class _Sent:
    """Bytes that a rank sends in a step, mean over ranks; of the busiest rank what it sends or receives, whichever are
    more: an owner sends its rows to all others that ask."""

    ids: float
    rows: float
    gradients: float
    sync_early: float
    """Gradients of the rows that were touched, and which those are;"""
    sync_late: float
    """sums, which travel until the next step reads."""
    dense: float
    messages: float
    busy_ids: float
    busy_rows: float
    busy_gradients: float
    busy_messages: float


def _sent(of: Traffic, owners: NDArray[np.int64], setting: Setting, constants: Constants) -> _Sent:
    """Args: of: float64 [tables] each, `pair` bytes those of one rank and its owner."""
    ranks, peers = setting.ranks, setting.ranks - 1
    serving = np.unique(owners[of.rows > 0])
    raw = 2 * float(of.decoded_values.sum()) / max(len(serving), 1)  # that a rank gets from each owner, about
    chunks = max(int(np.ceil(raw / CHUNK_BYTES)), 1)
    header, id_header = HEADER_BYTES + PAYLOAD_BYTES, 2 * HEADER_BYTES + ID_PAYLOAD_BYTES
    found: dict[str, float] = {}
    # An owner is told that nothing is asked of it, too.
    asked = np.unique(owners)
    for name, pair, extra, ranks_of in (
        ("ids", of.ids, id_header, asked),
        ("rows", of.rows, chunks * header, serving),
        ("gradients", of.gradients, chunks * header, serving),
    ):
        owned = np.array([pair[owners == rank].sum() + extra for rank in ranks_of])
        total = float(owned.sum())
        found[name] = peers / ranks * total
        # The busiest owner sends to all others, and itself gets what others own; a rank that owns nothing gets all.
        gets = total - owned.min(initial=np.inf) if len(ranks_of) == ranks else total
        found[f"busy_{name}"] = float(max((peers * owned).max(initial=0.0), gets)) if peers else 0.0
    inline = found["ids"] * ranks / max(peers * len(asked), 1) <= INLINE_BYTES
    for_ids, for_rows = (1 if inline else 2), 2 * chunks
    syncs = bool(of.sync_touched.any())
    dense, dense_messages = _dense(setting, constants)
    # Slots that were touched, their gradients, the union, the sums.
    sync_messages = 4 * peers * syncs
    each = syncs * peers * (header + id_header + constants.id_list_bytes)
    return _Sent(
        **found,
        sync_early=float((of.sync_touched + of.sync_ids).sum()) + each,
        sync_late=float(of.sync_union.sum()) + each,
        dense=dense,
        messages=peers / ranks * (len(asked) * for_ids + len(serving) * for_rows) + sync_messages + dense_messages,
        busy_messages=peers * (for_ids + bool(len(serving)) * for_rows) + sync_messages + dense_messages,
    )


def _coding_s(of: Traffic, picks: Sequence[Pick], constants: Constants) -> float:
    """Of the mean rank, to encode and to decode; gradients of hot rows by the chain of their table."""
    total = 0.0
    for chain in {pick.chain for pick in picks}:
        mine = np.array([pick.chain == chain for pick in picks])
        raw = (4 * float(values[mine].sum()) for values in (of.encoded_values, of.decoded_values))
        encoding, decoding = (constants.coding_s(chain, one) for one in raw)
        total += encoding[0] + decoding[1]
    return total


def _dense(setting: Setting, constants: Constants) -> tuple[float, float]:
    """Bytes and messages of the MLPs' gradients. An all-reduce sends 2 (W - 1) / W of them, by a ring or, as the thin
    exchange does, in two exchanges of slices."""
    ranks, values = setting.ranks, setting.dense_values
    if ranks == 1 or not values:
        return 0.0, 0.0
    messages, moved = 2.0 * (ranks - 1), 2 * (ranks - 1) / ranks * values
    if setting.dense == "none":
        return 4 * moved, messages
    doublings = np.log2(setting.batch / constants.dense_batch)
    bits = max(constants.dense_bits - constants.dense_bits_a_doubling * float(doublings), 0.0)
    return moved * bits / 8 + messages * (HEADER_BYTES + PAYLOAD_BYTES), messages


def _dense_coding_s(setting: Setting, constants: Constants) -> float:
    """A rank encodes the slices of others and the mean of its own, and decodes as many and its own mean."""
    if setting.dense == "none" or setting.ranks == 1:
        return 0.0
    encode, decode = constants.coding_s("bitpack", 4 * setting.dense_values)
    away = (setting.ranks - 1) / setting.ranks
    return encode + decode * (2 * away + 1 / setting.ranks)


def plain_cost(tables: Sequence[Table], setting: Setting, constants: Constants) -> StepCost:
    """Of TorchRec's own exchange in fp32, without a cache: ids and lengths of 4 bytes, pooled rows and their gradients.

    Owners are taken for as evenly loaded as whole tables allow: TorchRec's planner sees to that. With more ranks than
    tables the one that owns the widest table serves all others.
    """
    ranks, link = setting.ranks, setting.bytes_per_s(constants)
    away = (ranks - 1) / ranks
    lookups = setting.batch * sum(table.bag_length for table in tables)
    values = setting.batch * sum(table.dim for table in tables)
    ids = 4 * away * (lookups + setting.batch * len(tables))
    rows = gradients = 4 * away * values
    widest = setting.batch * max((table.dim for table in tables), default=0)
    busiest = max(1.0, widest * ranks / values) if values else 1.0
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
        busiest=busiest,
        compute_ms=constants.local_fixed_ms + 1e-3 * constants.local_sample_us * setting.batch,
        coding_ms=0.0,
        messages_ms=1e-3 * constants.message_us * messages,
        forward_ms=1e3 * (busiest * rows / link + max(0.0, busiest * ids / link - window)),
        backward_ms=1e3 * max(0.0, (busiest * gradients + dense) / link - window),
    )
