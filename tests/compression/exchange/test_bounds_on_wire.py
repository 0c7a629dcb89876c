"""What arrives, value for value, is what was sent within the bound of its table: judged in float64, from both ends."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
import pytest
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from compression import Codec, Relative
from compression.exchange import Direction, ExchangeConfig, TablePolicy, scale_bounds, thin_sharders
from compression.exchange.sharders import links
from tests.compression.exchange.models import (
    FEATURES,
    TABLES,
    Bags,
    batch_of,
    batches,
    error_of,
    fused,
    sharded,
    train,
)
from tests.compression.exchange.recorder import Message, matched, recorded
from tests.ranks import run_ranks

# One process starts the ranks for all tests.
pytestmark = [pytest.mark.usefixtures("compiled"), pytest.mark.xdist_group("bounds_on_wire")]
RANKS = 3
OWNERS = {table: i % RANKS for i, (table, *_) in enumerate(TABLES)}
OF_WIDTH = {dim: table for table, _, dim, _, _ in TABLES}
assert len(OF_WIDTH) == len(TABLES)
POLICIES = {
    "user": (Direction(0.01, "bitpack"), Direction(Relative(0.02), "huffman")),
    "item": (Direction(Relative(0.03), "rans"), Direction(1e-5, "dedup")),
    "tag": (Direction(0.0, "lossless"), Direction(Relative(0.05), "bitpack")),
}


def config(path: str, **others: Any) -> ExchangeConfig:
    policies = {table: TablePolicy(path, *both) for table, both in POLICIES.items()}  # type: ignore[arg-type]
    return ExchangeConfig(tables=policies, **others)


def model(of: ExchangeConfig, rate: float = 0.1, group: dist.ProcessGroup | None = None) -> Any:
    return sharded(Bags(), thin_sharders(of, fused_params=fused("sgd", rate)), group=group)


class Seen(NamedTuple):
    """A table in a message, at both ends."""

    table: str
    kind: str
    true: NDArray[np.float32]
    got: NDArray[np.float32]

    @property
    def bound(self) -> float:
        bound = POLICIES[self.table][self.kind == "gradients"].bound
        if not isinstance(bound, Relative):
            return bound
        finite = self.true[np.isfinite(self.true)].astype(np.float64)
        return bound.share * float(np.ptp(finite)) if finite.size else 0.0

    @property
    def error(self) -> float:
        """The largest; infinite where a value that is not finite, or that has no bound, is not bit for bit."""
        exact = self.true.view(np.uint32) == self.got.view(np.uint32)
        must = ~np.isfinite(self.true) if self.bound else np.ones_like(exact)
        if not exact[must].all():
            return np.inf
        with np.errstate(invalid="ignore"):
            errors = np.where(exact, 0, np.abs(self.true.astype(np.float64) - self.got))
        return float(np.nan_to_num(errors, nan=np.inf).max(initial=0))


def both_ends(sent: list[Message], got: list[Message]) -> list[Seen]:
    """What this rank got, next to what another rank encoded to those bytes."""
    found = []
    for true, out in matched(sent, got):
        table = OF_WIDTH[out.shape[1]]
        found.append(Seen(table, "gradients" if OWNERS[table] == dist.get_rank() else "output_dist", true, out))
    return found


def shares(seen: list[Seen]) -> dict[str, float]:
    """By table and direction, the largest error as a share of the bound; of exact ones, 0 or infinity."""
    found: dict[str, float] = {}
    for one in seen:
        key = f"{one.table} {one.kind}"
        found[key] = max(found.get(key, 0.0), one.error / one.bound if one.bound else one.error)
    return found


def traffic(path: str, **options: Any) -> dict[str, float]:
    """Some steps, by messages of a few rows."""
    dmp = model(config(path, chunk_bytes=500, **options))
    with recorded() as (sent, got):
        train(dmp, batches(3))
    return shares(both_ends(sent, got))


def scaled(rows: float, gradients: float) -> dict[str, float]:
    """Errors as shares of the stated bounds, or errors where these are multiplied by 0, and again with the stated."""
    dmp = model(config("row"))
    scale_bounds(dmp, rows, gradients)
    with recorded() as (sent, got):
        train(dmp, batches(3))
    scale_bounds(dmp)
    with recorded() as (after_sent, after_got):
        train(dmp, batches(1))
    after = {f"{key} after": share for key, share in shares(both_ends(after_sent, after_got)).items()}
    return shares(both_ends(sent, got)) | after


def verified(path: str, stochastic: bool) -> list[float]:
    return train(model(config(path, verify=True, stochastic=stochastic)), batches(3))


def specials(path: str) -> dict[str, Any]:
    """NaN, infinities and -0.0 in a row, and in its gradient: all ranks ask for this row alone."""
    dmp = model(config(path))
    row = torch.tensor([np.nan, np.inf, -np.inf, -0.0, 1e-42, 0.3, -0.2, 0.1])
    for name, weight in dmp.state_dict().items():
        for shard in weight.local_shards() if "user" in name else ():
            shard.tensor[7] = row
    lengths = torch.tensor([1, 0, 0, 0])
    features = KeyedJaggedTensor(keys=FEATURES, values=torch.tensor([7]), lengths=lengths, stride=1)
    with recorded() as (sent, got):
        pooled = dmp.module.ebcs[0](features).to_dict()["user"]
        pooled.backward(row.flip(0).reshape(1, -1))
    seen = both_ends(sent, got)
    return {
        "shares": shares(seen),
        "bits": pooled.detach().numpy().view(np.int32)[0, :3].tolist(),
        "sent": sum(int((~np.isfinite(table)).sum()) for message in sent for table in message.tables),
        "counted": sum(link.stats.nonfinite for link in links(dmp)),
    }


def repeated(steps: int) -> dict[str, Any]:
    """The same gradients again and again, rounded at random: errors of what arrives in the mean, in standard errors."""
    dmp = model(config("row", stochastic=True), rate=0.0)
    with recorded() as (sent, got):
        for _ in range(steps):
            pooled = dmp.module.ebcs[0](batch_of(0, 16))
            pooled.values().backward(torch.linspace(-1, 1, pooled.values().numel()).reshape(pooled.values().shape) ** 3)
    found: dict[str, Any] = {"shares": shares(both_ends(sent, got)), "z": {}}
    by_sender: dict[bytes, list[Seen]] = {}
    for one in both_ends(sent, got):
        if one.kind == "gradients" and one.bound:
            by_sender.setdefault(one.true.tobytes(), []).append(one)
    for many in by_sender.values():
        assert len(many) == steps
        true, bound = many[0].true.astype(np.float64), many[0].bound
        mean = np.mean([one.got.astype(np.float64) for one in many], axis=0)
        # Codes are a bound apart, so the standard deviation of a value is at most half a bound.
        z = (mean - true) / (bound / 2 / np.sqrt(steps))
        found["z"][many[0].table] = [float(np.abs(z).max()), float(z.mean() * np.sqrt(z.size)), z.size]
    return found


@contextmanager
def wrong(at: str, table: str, kind: str) -> Iterator[None]:
    """On ranks that send this kind of this table, a codec errs by more than the bound in one value, or returns NaN."""
    dim = next(d for t, _, d, _, _ in TABLES if t == table)
    encode, decode = Codec.encode_flat, Codec.decode_flat

    def spoil(flat: Any, rows: Any, columns: Any, by: float) -> Any:
        flat = flat.copy()
        for n, c, end in zip(rows, columns, np.cumsum(rows * columns), strict=True):
            if c == dim and n > 2:
                flat[end - n * c + 2 * c + 3] += by
        return flat

    def encoding(self: Codec, values: Any, rows: Any, columns: Any, *others: Any, **options: Any) -> Any:
        return encode(self, spoil(values, rows, columns, 0.5), rows, columns, *others, **options)

    def decoding(self: Codec, payload: Any, rows: Any, columns: Any, out: Any) -> None:
        decode(self, payload, rows, columns, out)
        out[:] = spoil(out, rows, columns, np.nan)

    if (OWNERS[table] == dist.get_rank()) != (kind == "output_dist"):
        yield
    elif at == "encode":
        with patch.object(Codec, "encode_flat", encoding):
            yield
    else:
        with patch.object(Codec, "decode_flat", decoding):
            yield


def found_wrong(group: dist.ProcessGroup, *fault: str) -> None:
    """By the exchange itself."""
    dmp = model(config("row", verify=True, timeout_s=60.0), group=group)
    with wrong(*fault):
        train(dmp, batches(1))


def seen_wrong(*fault: str) -> dict[str, float]:
    """By the test above, while the exchange does not look."""
    dmp = model(config("row"))
    with wrong(*fault), recorded() as (sent, got):
        train(dmp, batches(1))
    return shares(both_ends(sent, got))


FAULTS = [
    ("encode", "user", "output_dist"),
    ("decode", "item", "output_dist"),
    ("encode", "item", "gradients"),
]


def on_a_rank() -> dict[str, Any]:
    return {
        "traffic": [traffic(path, stochastic=stochastic) for path in ("row", "pooled") for stochastic in (False, True)],
        "verified": [verified(path, stochastic) for path in ("row", "pooled") for stochastic in (False, True)],
        "specials": [specials(path) for path in ("row", "pooled")],
        "repeated": repeated(200),
        "scaled": [scaled(2.0, 0.5), scaled(0.0, 1.0)],
        "found": [error_of(lambda group, fault=fault: found_wrong(group, *fault)) for fault in FAULTS],
        "seen": seen_wrong(*FAULTS[0]),
    }


@pytest.fixture(scope="module")
def ranks() -> list[dict[str, Any]]:
    return run_ranks(on_a_rank, RANKS)


def test_every_value_that_arrives_is_within_its_bound(ranks: list[dict[str, Any]]) -> None:
    for number in range(4):
        seen: dict[str, float] = {}
        for found in ranks:
            for key, share in found["traffic"][number].items():
                seen[key] = max(seen.get(key, 0.0), share)
        for table, directions in POLICIES.items():
            for kind, direction in zip(("output_dist", "gradients"), directions, strict=True):
                most = seen.pop(f"{table} {kind}")
                # Near the bound: it is the real traffic that was looked at, and it was rounded.
                assert (0.8 < most <= 1) if direction.bound else most == 0, (number, table, kind, most)
        assert not seen


def test_bounds_can_be_scaled_between_steps(ranks: list[dict[str, Any]]) -> None:
    for number, factors in enumerate([(2.0, 0.5), (0.0, 1.0)]):
        for table, directions in POLICIES.items():
            for kind, direction, factor in zip(("output_dist", "gradients"), directions, factors, strict=True):
                of_ranks = [found["scaled"][number] for found in ranks]
                most, after = (
                    max(seen.get(f"{table} {kind}{when}", 0.0) for seen in of_ranks) for when in ("", " after")
                )
                assert (0.7 * factor < most <= factor) if direction.bound and factor else most == 0, (table, kind, most)
                assert (0.5 < after <= 1) if direction.bound else after == 0, (table, kind, after)


def test_verify_finds_nothing_wrong_with_real_traffic(ranks: list[dict[str, Any]]) -> None:
    for found in ranks:
        assert np.isfinite(found["verified"]).all()


def test_nan_and_infinity_travel_and_are_counted(ranks: list[dict[str, Any]]) -> None:
    true = np.array([np.nan, np.inf, -np.inf], np.float32).view(np.int32).tolist()
    for found in ranks:
        for special in found["specials"]:
            assert special["bits"] == true
            assert special["sent"] == special["counted"]
            assert all(share <= 1 for share in special["shares"].values())
    for path in range(2):
        assert [found["specials"][path]["counted"] for found in ranks] == [6, 3, 3]


def test_gradients_rounded_at_random_are_right_in_the_mean(ranks: list[dict[str, Any]]) -> None:
    for found in ranks:
        assert all(share <= 1 for share in found["repeated"]["shares"].values())
        for table, (most, of_mean, size) in found["repeated"]["z"].items():
            assert most < 4 + np.log10(size) and abs(of_mean) < 4, (table, most, of_mean)
    assert {table for found in ranks for table in found["repeated"]["z"]} == set(POLICIES)


def test_a_wrong_codec_is_named_before_anything_is_done_with_its_values(ranks: list[dict[str, Any]]) -> None:
    for number, (_, table, kind) in enumerate(FAULTS):
        said = [found["found"][number] for found in ranks]
        for rank, text in enumerate(said):
            if (rank == OWNERS[table]) == (kind == "output_dist"):
                assert text.startswith(f"BoundError: {kind} of table {table}: row 2, column 3 is "), said
            else:
                assert text.startswith("ExchangeError: ") and f"said: {kind}: table {table}: row 2, " in text, said
    # The tests above would see it too.
    assert [found["seen"].get("user output_dist", 0.0) > 10 for found in ranks] == [False, True, True]
