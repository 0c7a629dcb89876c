"""What the exchange says that it sent, against what a group counts and what the ids of the batches make."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch.distributed as dist

from compression.exchange import Direction, ExchangeConfig, TablePolicy, exchange_report, thin_sharders
from compression.exchange.frames import HEADER_BYTES
from compression.exchange.sharders import links
from pipelines.groups import Groups, counting_groups
from pipelines.metrics import KINDS, WireBytes
from pipelines.options import ExchangeOptions
from pipelines.ranges import watch_thin_exchange
from tests.compression.exchange.models import (
    TABLES,
    Bags,
    Sequences,
    batches,
    exact,
    fused,
    sharded,
    train,
    weights_of,
)
from tests.ranks import run_ranks

pytestmark = pytest.mark.usefixtures("compiled")
OPTIONS = {"fused_params": fused("sgd")}
STEPS, ROWS = 3, 300
DIMS = {table: dim for table, _, dim, _, _ in TABLES}


def expected(owners: dict[str, int]) -> dict[str, dict[str, float]]:
    """By table, means a step: lookups and distinct rows of this rank, and bytes in float32 and int64 to other ranks."""
    me, found = dist.get_rank(), {}
    for table, _, dim, features, _ in TABLES:
        ids = [np.concatenate([batch[f].values().numpy() for f in features]) for batch in batches(STEPS, ROWS)]
        lookups, distinct = sum(map(len, ids)) / STEPS, sum(len(np.unique(one)) for one in ids) / STEPS
        abroad = float(owners[table] != me)
        found[table] = {
            "lookups": lookups,
            "distinct": distinct,
            "distinct_share": distinct / lookups,
            "ids_raw_bytes": abroad * 8 * distinct,
            "gradients_raw_bytes": abroad * 4 * dim * distinct,
        }
    # What the owner sends is what others ask for.
    asked: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(asked, found)
    for table, row in found.items():
        row["output_dist_raw_bytes"] = (
            sum(of[table]["gradients_raw_bytes"] for of in asked) if owners[table] == me else 0.0
        )
    return found


def counted(groups: Groups, path: str) -> dict[str, Any]:
    """Of some steps: bytes and messages that the group counts, the report, and what it should say."""
    calls, add = dict.fromkeys(KINDS, 0), WireBytes.add

    def count(kind: str, size: int) -> None:
        calls[kind] += 1
        add(groups.wire, kind, size)

    groups.wire.add = count  # type: ignore[method-assign]
    policy = TablePolicy(path, Direction(0.01, "huffman"), Direction(1e-5, "bitpack"))  # type: ignore[arg-type]
    dmp = sharded(Bags(), thin_sharders(ExchangeConfig(default=policy), **OPTIONS), group=groups.exchange)
    train(dmp, batches(1, ROWS))
    groups.wire.take()
    calls.update(dict.fromkeys(KINDS, 0))
    for link in links(dmp):
        link.stats.reset()
    train(dmp, batches(STEPS, ROWS))
    wire = dict(zip(KINDS, groups.wire.take().tolist(), strict=True))
    owners = {table: i % dist.get_world_size() for i, (table, *_) in enumerate(TABLES)}
    return {"wire": wire, "calls": dict(calls), "report": exchange_report(dmp), "expected": expected(owners)}


def chunked(kind: str, path: str) -> list[bool]:
    """Whether messages of a few rows train as one message does; over 64 chunks, so that tags are used again."""
    found = []
    for chunk_bytes in (1 << 20, 64):
        config = exact(path, chunk_bytes=chunk_bytes, verify=True)
        dmp = sharded(Sequences() if kind == "sequences" else Bags(), thin_sharders(config, **OPTIONS), columns=True)
        found.append([train(dmp, batches(2, ROWS)), weights_of(dmp)])
    return found[0] == found[1]


def on_a_rank() -> dict[str, Any]:
    watch_thin_exchange()
    groups = counting_groups(ExchangeOptions())
    return {
        **{path: counted(groups, path) for path in ("row", "pooled")},
        "chunks": [chunked("bags", "row"), chunked("bags", "pooled"), chunked("sequences", "row")],
    }


def test_the_report_is_what_the_group_counts() -> None:
    by_rank = run_ranks(on_a_rank, 3)
    for found in by_rank:
        for path in ("row", "pooled"):
            wire, calls, report = (found[path][key] for key in ("wire", "calls", "report"))
            said = {kind: STEPS * sum(row[f"{kind}_bytes"] for row in report) for kind in KINDS[2:5]}
            for kind in ("output_dist", "gradients"):
                assert calls[kind]
                assert said[kind] == pytest.approx(wire[kind] - HEADER_BYTES * calls[kind])
            # Each payload of ids is behind two headers, one with its size.
            headers = (wire["ids"] + wire["sizes"] - said["ids"]) / HEADER_BYTES
            assert headers == pytest.approx(2 * STEPS * 2) and said["ids"] > 0
            assert not wire["lengths"]
        for row in found["row"]["report"]:
            for key, value in found["row"]["expected"][row["table"]].items():
                assert row[key] == pytest.approx(value), (row["table"], key)
            for kind in ("output_dist", "gradients"):
                assert not row[f"{kind}_raw_bytes"] or row[f"{kind}_ratio"] > 1.5
        for row in found["pooled"]["report"]:
            assert row["lookups"] == row["distinct"] == pytest.approx(found["row"]["expected"][row["table"]]["lookups"])
        assert found["chunks"] == [True] * 3
