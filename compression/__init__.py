"""Error-bounded compression of embedding rows, gradients and ids: docs/codec.md.

It stands alone: it needs NumPy and numba, and takes torch tensors where torch is there.
"""

from compression.codec import Bound, Codec, Relative, inspect
from compression.errors import CorruptPayloadError
from compression.id_lists import decode_id_lists, encode_id_lists
from compression.ids import decode_ids, encode_ids
from compression.warm_up import warm_up

__all__ = [
    "Bound",
    "Codec",
    "CorruptPayloadError",
    "Relative",
    "decode_id_lists",
    "decode_ids",
    "encode_id_lists",
    "encode_ids",
    "inspect",
    "warm_up",
]
