"""What the codec of a rank is given to encode, and what the codec of another rank makes of the bytes."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
import torch.distributed as dist
from numpy.typing import NDArray

from compression import Codec

Table = NDArray[np.float32]


class Message(NamedTuple):
    """A payload and the tables in it."""

    digest: str
    tables: list[Table]


@contextmanager
def recorded() -> Iterator[tuple[list[Message], list[Message]]]:
    """What this rank encodes and decodes."""
    sent: list[Message] = []
    got: list[Message] = []
    encode, decode = Codec.encode_flat, Codec.decode_flat

    def note(into: list[Message], payload: Any, flat: Any, rows: Any, columns: Any) -> None:
        ends = np.cumsum(rows * columns)[:-1]
        tables = [part.reshape(n, c) for part, n, c in zip(np.split(flat.copy(), ends), rows, columns, strict=True)]
        into.append(Message(hashlib.sha256(payload).hexdigest(), tables))

    def encoding(self: Codec, values: Any, rows: Any, columns: Any, *others: Any, **options: Any) -> Any:
        payload = encode(self, values, rows, columns, *others, **options)
        note(sent, payload, values, rows, columns)
        return payload

    def decoding(self: Codec, payload: Any, rows: Any, columns: Any, out: Any) -> None:
        decode(self, payload, rows, columns, out)
        note(got, payload, out, rows, columns)

    with patch.object(Codec, "encode_flat", encoding), patch.object(Codec, "decode_flat", decoding):
        yield sent, got


def matched(sent: list[Message], got: list[Message]) -> list[tuple[Table, Table]]:
    """Tables as a rank encoded them, and as this rank got them. All ranks must call it at once."""
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, sent)
    encoded = {message.digest: message.tables for messages in everyone for message in messages}
    return [pair for message in got for pair in zip(encoded[message.digest], message.tables, strict=True)]
