"""Which collective is called, read from the profiler ranges that TorchRec and the thin exchange open around each."""

from __future__ import annotations

from torch.autograd.profiler import record_function
from torchrec.distributed import comm_ops, dist_data

_PARTS_OF_A_KJT = {"splits": "sizes", "lengths": "lengths", "strides": "lengths", "values": "ids", "weights": "ids"}


class _Label(record_function):
    """TorchRec opens such a range, with a name that tells what it sends, around each of its collectives."""

    current: str = ""

    def __enter__(self) -> record_function:
        _Label.current = self.name
        return super().__enter__()

    def __exit__(self, *error: object) -> None:
        _Label.current = ""
        super().__exit__(*error)


def watch_torchrec() -> None:
    """From now on `current_kind` knows which of TorchRec's collectives is being called."""
    comm_ops.record_function = dist_data.record_function = _Label


def watch_thin_exchange() -> None:
    """The same for the collectives of `compression.exchange`."""
    from compression.exchange import transport

    transport.record_function = _Label  # type: ignore[misc]


def current_kind() -> str | None:
    """The kind of the collective of TorchRec or of the thin exchange that is being called, None outside of all."""
    label = _Label.current.strip("# ")
    if label.startswith("thinwire:"):
        return label.removeprefix("thinwire:")
    if label.startswith("all2all_data:kjt "):
        return _PARTS_OF_A_KJT.get(label.removeprefix("all2all_data:kjt "), "other")
    if "_bwd" in label or "_bw " in label:
        return "gradients"
    return "output_dist" if "_fwd" in label else None
