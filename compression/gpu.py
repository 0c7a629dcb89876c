"""The codec on CUDA tensors, through CuPy: same payloads as the CPU codec, made on the device.

`tensor_codec(device)` gives a codec for tensors of a device. This is the only file that imports CuPy, and it does so
when a codec is made for a CUDA device. Kernels are compiled then, not in the first step of training, and kept in
`device.sources.cache_folder()`. All work is on PyTorch's current stream of the device, all memory from PyTorch's
allocator.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from compression import wire
from compression.codec import Bound, Codec
from compression.device.backend import THREADS, kernel_files
from compression.device.codec import DeviceCodec, Matrix, Payload
from compression.device.sources import OPTIONS, binary_of, cache_folder

_warned = False


class GpuUnavailableError(RuntimeError):
    """What is missing to run kernels, and how to get it."""


class HostCodec:
    """The CPU codec for tensors of any device: tables and payloads go through the host."""

    def __init__(self) -> None:
        self._codec = Codec()

    def encode(
        self, tables: Sequence[torch.Tensor], bounds: Bound | Sequence[Bound], chain: str | Sequence[str] = "bitpack",
        *, stochastic: int | None = None,
    ) -> torch.Tensor:  # fmt: skip
        """See `GpuCodec.encode`. The payload is on the device of the tables."""
        device = tables[0].device if tables else torch.device("cpu")
        payload = self._codec.encode([table.detach().cpu() for table in tables], bounds, chain, stochastic=stochastic)
        return torch.from_numpy(payload.copy()).to(device)

    def decode(self, payload: torch.Tensor, outs: Sequence[torch.Tensor]) -> None:
        """See `GpuCodec.decode`."""
        hosts = [torch.empty(out.shape, dtype=out.dtype) for out in outs]
        self._codec.decode(payload.cpu(), hosts)
        for out, host in zip(outs, hosts, strict=True):
            out.detach().copy_(host)


class GpuCodec:
    """The codec for tensors of one CUDA device. Calls may come on any stream, one at a time.

    Args:
        device: with an index, or the current one.

    Raises:
        GpuUnavailableError: no device, CuPy, or compiler.
    """

    def __init__(self, device: torch.device | str = "cuda") -> None:
        self._backend = CudaBackend(torch.device(device))
        self.device = self._backend.device
        with self._backend.current():
            self._codec = DeviceCodec(self._backend)

    def encode(
        self, tables: Sequence[torch.Tensor], bounds: Bound | Sequence[Bound], chain: str | Sequence[str] = "bitpack",
        *, stochastic: int | None = None,
    ) -> torch.Tensor:  # fmt: skip
        """Encode tables into one payload; see `Codec.encode`.

        Args:
            tables: [rows, columns] each; float32, float16 and bfloat16 stay on the device.

        Returns:
            uint8 [bytes] on the device, valid until the next call of `encode`.

        Raises:
            ValueError: a bound or chain is none, or a table is not a matrix of this device.
            TypeError: a dtype that cannot be encoded.
        """
        return self.encode_messages([tables], bounds, chain, stochastic=stochastic)[0]

    def encode_messages(
        self, messages: Sequence[Sequence[torch.Tensor]], bounds: Bound | Sequence[Bound],
        chain: str | Sequence[str] = "bitpack", *, stochastic: int | None = None,
    ) -> list[torch.Tensor]:  # fmt: skip
        """`encode` of several messages, as one to each rank, in one launch a stage.

        Args:
            bounds, chain: one for all tables, or one for each table of all messages.
        """
        held = [[contiguous(table, self.device) for table in message] for message in messages]
        with self._backend.current():
            payloads = self._codec.encode(
                [[matrix(table) for table in message] for message in held], bounds, chain, stochastic=stochastic
            )
            self._backend.used(table for message in held for table in message)
        return [self._view(payload) for payload in payloads]

    def decode(self, payload: torch.Tensor, outs: Sequence[torch.Tensor]) -> None:
        """Decode a payload into tensors of the device; non-contiguous ones are filled by a copy.

        Raises:
            CorruptPayloadError: as `Codec.decode`.
            ValueError, TypeError: as `encode`.
        """
        self.decode_messages([payload], [outs])

    def decode_messages(self, payloads: Sequence[torch.Tensor], outs: Sequence[Sequence[torch.Tensor]]) -> None:
        """`decode` of several messages, in one launch a stage."""
        data = [contiguous(payload.reshape(1, -1), self.device) for payload in payloads]
        data = [one.clone() if one.data_ptr() % 4 else one for one in data]
        held = [[contiguous(out, self.device) for out in message] for message in outs]
        with self._backend.current():
            self._codec.decode(
                [Payload(one.data_ptr(), one.numel() * one.element_size()) for one in data],
                [[matrix(out) for out in message] for message in held],
            )
            self._backend.used([*data, *(out for message in held for out in message)])
            for message, copies in zip(outs, held, strict=True):
                for out, copy in zip(message, copies, strict=True):
                    if copy.data_ptr() != out.data_ptr():
                        out.detach().copy_(copy)

    def _view(self, payload: Payload) -> torch.Tensor:
        for arena in self._codec.arenas:
            for memory in arena.buffers():
                offset = payload.address - memory.data_ptr()
                if 0 <= offset <= memory.numel() - payload.size:
                    return memory[offset : offset + payload.size]
        return torch.empty(0, dtype=torch.uint8, device=self.device)

    @property
    def size(self) -> int:
        """Bytes of device memory held."""
        return self._codec.size

    @contextmanager
    def timed_launches(self) -> Iterator[list[tuple[str, torch.cuda.Event, torch.cuda.Event]]]:
        """Kernels launched while this is open, each with events before and after it."""
        found: list[tuple[str, torch.cuda.Event, torch.cuda.Event]] = []
        self._backend.timed = found
        try:
            yield found
        finally:
            self._backend.timed = None


def tensor_codec(device: torch.device | str) -> GpuCodec | HostCodec:
    """A codec for tensors of a device; on a CUDA device where kernels cannot run, the CPU codec, with one warning."""
    global _warned
    if torch.device(device).type != "cuda":
        return HostCodec()
    try:
        return GpuCodec(device)
    except GpuUnavailableError as error:
        if not _warned:
            _warned = True
            warnings.warn(f"the CPU codec is used for CUDA tensors: {error}", RuntimeWarning, stacklevel=2)
        return HostCodec()


def contiguous(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """A tensor that a kernel can take, on the same memory if it is contiguous.

    Raises:
        TypeError: a dtype that cannot be encoded.
        ValueError: not a matrix, or on another device.
    """
    if str(tensor.dtype).removeprefix("torch.") not in wire.DTYPES:
        raise TypeError(f"dtype {tensor.dtype} cannot be encoded: {', '.join(wire.DTYPES)}")
    if tensor.dim() != 2:
        raise ValueError(f"a table has rows and columns, this one has shape {tuple(tensor.shape)}")
    if tensor.device != device:
        raise ValueError(f"a tensor on {tensor.device}: this codec is for {device}")
    return tensor.detach().contiguous()


def matrix(tensor: torch.Tensor) -> Matrix:
    """A contiguous tensor as kernels are told of it."""
    dtype = wire.DTYPES.index(str(tensor.dtype).removeprefix("torch."))
    rows, columns = tensor.shape
    return Matrix(tensor.data_ptr(), rows, columns, dtype)


class CudaBackend:
    """A `Backend` on PyTorch's current stream of a device; all calls are made within `current`."""

    def __init__(self, device: torch.device) -> None:
        self._cupy = _import_cupy()
        if not torch.cuda.is_available():
            raise GpuUnavailableError("PyTorch sees no CUDA device: install a driver, or a PyTorch built for CUDA")
        self.device = torch.device("cuda", torch.cuda.current_device() if device.index is None else device.index)
        self.timed: list[tuple[str, torch.cuda.Event, torch.cuda.Event]] | None = None
        self._last: tuple[int, Any] | None = None
        with torch.cuda.device(self.device), self._cupy.cuda.Device(self.device.index):
            self._kernels = load_kernels(self._cupy)
        self._staging = self._arrived = torch.empty(0, dtype=torch.uint8)
        self._sent = torch.cuda.Event()

    @contextmanager
    def current(self) -> Iterator[None]:
        """Work on this device and PyTorch's current stream of it; what was current is so again afterwards, also after
        an error. If the last call was on another stream, its work is waited for on the device: buffers are shared."""
        stream = torch.cuda.current_stream(self.device)
        if self._last is not None and self._last[0] != stream.cuda_stream:
            stream.wait_event(self._last[1])
        with ExitStack() as stack:
            stack.enter_context(torch.cuda.device(self.device))
            stack.enter_context(self._cupy.cuda.Device(self.device.index))
            stack.enter_context(self._cupy.cuda.Stream.from_external(stream))
            try:
                yield
            finally:
                self._last = stream.cuda_stream, stream.record_event()

    def used(self, tensors: Any) -> None:
        """Tensors that launches read or write: their memory is not given to others before these have ended."""
        stream = torch.cuda.current_stream(self.device)
        for tensor in tensors:
            tensor.record_stream(stream)

    def allocate(self, size: int) -> torch.Tensor:
        return torch.empty(size, dtype=torch.uint8, device=self.device)

    def room(self, size: int) -> int:
        return size + size // 4 + 256

    def address(self, memory: torch.Tensor) -> int:
        return memory.data_ptr()

    def upload(self, address: int, data: NDArray[Any]) -> None:
        raw = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
        self._sent.synchronize()  # the copy before this one has left the staging memory
        if self._staging.numel() < raw.size:
            self._staging = torch.empty(self.room(raw.size), dtype=torch.uint8, pin_memory=True)
        self._staging.numpy()[: raw.size] = raw
        self._copy(address, self._staging.data_ptr(), raw.size, self._cupy.cuda.runtime.memcpyHostToDevice)
        self._sent.record(torch.cuda.current_stream(self.device))

    def zero(self, address: int, size: int) -> None:
        stream = torch.cuda.current_stream(self.device).cuda_stream
        self._cupy.cuda.runtime.memsetAsync(address, 0, size, stream)

    def download(self, address: int, size: int) -> NDArray[np.uint8]:
        if self._arrived.numel() < size:
            self._arrived = torch.empty(self.room(size), dtype=torch.uint8, pin_memory=True)
        self._copy(self._arrived.data_ptr(), address, size, self._cupy.cuda.runtime.memcpyDeviceToHost)
        torch.cuda.current_stream(self.device).synchronize()
        return self._arrived.numpy()[:size].copy()

    def _copy(self, to: int, source: int, size: int, kind: int) -> None:
        if size:
            stream = torch.cuda.current_stream(self.device).cuda_stream
            self._cupy.cuda.runtime.memcpyAsync(to, source, size, kind, stream)

    def launch(self, kernel: str, grid: tuple[int, int], arguments: tuple[int, ...]) -> None:
        words = tuple(np.uint64(argument) for argument in arguments)
        if self.timed is None:
            self._kernels[kernel]((*grid, 1), (THREADS, 1, 1), words)
            return
        stream = torch.cuda.current_stream(self.device)
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record(stream)
        self._kernels[kernel]((*grid, 1), (THREADS, 1, 1), words)
        end.record(stream)
        self.timed.append((kernel, start, end))


def _import_cupy() -> Any:
    try:
        import cupy
    except ImportError as error:
        raise GpuUnavailableError(f"CuPy cannot be imported ({error}): pip install 'cupy-cuda13x==14.*'") from error
    try:
        devices = cupy.cuda.runtime.getDeviceCount()
    except Exception as error:
        raise GpuUnavailableError(f"CuPy finds no driver that it can use ({error}): install or update it") from error
    if not devices:
        raise GpuUnavailableError("CuPy sees no CUDA device: check CUDA_VISIBLE_DEVICES")
    return cupy


def load_kernels(cupy: Any) -> dict[str, Any]:
    """All kernels for the current device, compiled or from the cache.

    Raises:
        GpuUnavailableError: they cannot be compiled, kept or loaded.
    """
    arch = cupy.cuda.Device().compute_capability
    modules, kernels = {}, {}
    for name, file in kernel_files().items():
        if file not in modules:
            modules[file] = _load(cupy, file, arch)
        kernels[name] = modules[file].get_function(name)
    return kernels


def _load(cupy: Any, file: str, arch: str) -> Any:
    folder = cache_folder()
    try:
        version = ".".join(map(str, cupy.cuda.nvrtc.getVersion()))
        path = binary_of(
            file, arch, f"nvrtc {version}", lambda source: compile_source(cupy, source, file, arch), folder
        )
        module = cupy.RawModule(path=str(path))
        module.compile()
        return module
    except OSError as error:
        fix = "set THINWIRE_KERNEL_CACHE to a folder that can be written to"
        raise GpuUnavailableError(f"the kernels cannot be kept in {folder} ({error}): {fix}") from error
    except Exception as error:
        fix = "install the NVRTC that this CuPy wants: pip install nvidia-cuda-nvrtc"
        raise GpuUnavailableError(f"{file} was not compiled for sm_{arch} ({error}): {fix}") from error


def compile_source(cupy: Any, source: str, file: str, arch: str) -> bytes:
    """Machine code by NVRTC; needs no CUDA headers and no device.

    Raises:
        RuntimeError: with the compiler's log.
    """
    # Not by RawModule, which would flush subnormals to 0.
    nvrtc = cupy.cuda.nvrtc
    program = nvrtc.createProgram(source, file, (), ())
    try:
        nvrtc.compileProgram(program, (*OPTIONS, f"-arch=sm_{arch}"))
        return bytes(nvrtc.getCUBIN(program))
    except nvrtc.NVRTCError as error:
        raise RuntimeError(f"{error}: {nvrtc.getProgramLog(program)}") from error
    finally:
        nvrtc.destroyProgram(program)
