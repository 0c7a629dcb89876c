"""What `compression.gpu` does around the kernels, without a GPU: a stand-in of CuPy and of PyTorch's streams."""

import sys
import types
import warnings
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch

from compression import Codec, gpu, wire
from compression.device.backend import kernel_files
from compression.device.sources import OPTIONS, cache_folder
from tests.compression.codec_checks import trained


class Stream:
    def __init__(self, number, log):
        self.cuda_stream, self.log = number, log

    def wait_event(self, event):
        self.log.append(("wait", self.cuda_stream, event))

    def record_event(self):
        self.log.append(("record", self.cuda_stream))
        return f"end of {self.cuda_stream}"

    def synchronize(self):
        self.log.append(("synchronize", self.cuda_stream))


class Nvrtc:
    """A compiler that gives back what it was asked."""

    NVRTCError = RuntimeError

    def __init__(self):
        self.programs, self.options, self.broken = [], [], ""

    def getVersion(self):  # noqa: N802 - CuPy's names
        return 13, 0

    def createProgram(self, source, name, headers, includes):  # noqa: N802
        assert (headers, includes) == ((), ())
        self.programs.append(name)
        return source

    def compileProgram(self, program, options):  # noqa: N802
        self.options.append(options)
        if self.broken:
            raise self.NVRTCError(self.broken)

    def getCUBIN(self, program):  # noqa: N802
        return program.encode()

    def getProgramLog(self, program):  # noqa: N802
        return "the log"

    def destroyProgram(self, program):  # noqa: N802
        pass


class Cuda:
    """Devices that are current in CuPy and in PyTorch, and what was done with streams."""

    def __init__(self, monkeypatch, tmp_path):
        self.log, self.cupy_device, self.torch_device, self.devices = [], 0, 0, 2
        self.streams = {index: Stream(10 + index, self.log) for index in range(2)}
        self.nvrtc, self.loaded = Nvrtc(), []
        monkeypatch.setenv("THINWIRE_KERNEL_CACHE", str(tmp_path / "kernels"))
        monkeypatch.setitem(sys.modules, "cupy", self._cupy())
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "current_device", lambda: self.torch_device)
        monkeypatch.setattr(torch.cuda, "current_stream", lambda device: self.streams[torch.device(device).index])
        monkeypatch.setattr(
            torch.cuda, "device", lambda device: self._current("torch_device", torch.device(device).index)
        )
        monkeypatch.setattr(torch.cuda, "Event", lambda **options: types.SimpleNamespace(synchronize=lambda: None))
        monkeypatch.setattr(gpu, "_warned", False)

    @contextmanager
    def _current(self, name, index):
        before = getattr(self, name)
        setattr(self, name, index)
        try:
            yield types.SimpleNamespace(compute_capability="90")
        finally:
            setattr(self, name, before)

    def _cupy(self):
        def device(index=None):
            return self._current("cupy_device", self.cupy_device if index is None else index)

        def current_device():
            return types.SimpleNamespace(compute_capability="90")

        def module(path):
            def compile_():
                self.loaded.append((self.cupy_device, Path(path).name))

            return types.SimpleNamespace(compile=compile_, get_function=lambda name: name)

        cupy = types.ModuleType("cupy")
        cupy.RawModule = module
        cupy.cuda = types.SimpleNamespace(
            nvrtc=self.nvrtc,
            runtime=types.SimpleNamespace(getDeviceCount=lambda: self.devices),
            Device=lambda index=None: current_device() if index is None else device(index),
            Stream=types.SimpleNamespace(from_external=lambda stream: self._current("stream", stream.cuda_stream)),
        )
        self.stream = None
        return cupy


@pytest.fixture
def cuda(monkeypatch, tmp_path):
    return Cuda(monkeypatch, tmp_path)


def test_pc101_all_kernels_are_compiled_when_a_codec_is_made(cuda):
    backend = gpu.CudaBackend(torch.device("cuda", 1))
    files = sorted(set(kernel_files().values()))
    assert sorted(cuda.nvrtc.programs) == files
    assert set(cuda.nvrtc.options) == {(*OPTIONS, "-arch=sm_90")}
    assert sorted(backend._kernels) == sorted(kernel_files())
    assert {device for device, _ in cuda.loaded} == {1}
    # Kept, so the next process compiles nothing.
    cuda.nvrtc.programs.clear()
    gpu.CudaBackend(torch.device("cuda", 0))
    assert cuda.nvrtc.programs == []
    assert len(list(cache_folder().glob("*-sm_90-*.cubin"))) == len(files)


def test_pc101_what_is_missing_is_named_once_and_the_cpu_codec_is_used(cuda, monkeypatch, tmp_path):
    def message():
        with pytest.raises(gpu.GpuUnavailableError) as caught:
            gpu.CudaBackend(torch.device("cuda"))
        return str(caught.value)

    cuda.nvrtc.broken = "no builtins"
    assert "was not compiled for sm_90 (no builtins: the log): install the NVRTC" in message()
    cuda.nvrtc.broken = ""
    (tmp_path / "file").touch()
    monkeypatch.setenv("THINWIRE_KERNEL_CACHE", str(tmp_path / "file"))
    assert "set THINWIRE_KERNEL_CACHE" in message()
    cuda.devices = 0
    assert "check CUDA_VISIBLE_DEVICES" in message()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    cuda.devices = 1
    assert "PyTorch sees no CUDA device" in message()
    monkeypatch.setitem(sys.modules, "cupy", None)
    assert "pip install 'cupy-cuda13x==14.*'" in message()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        codecs = [gpu.tensor_codec("cuda") for _ in range(3)]
    assert all(isinstance(codec, gpu.HostCodec) for codec in codecs)
    assert len(caught) == 1 and "the CPU codec is used for CUDA tensors" in str(caught[0].message)


def test_pc106_devices_and_streams_are_put_back_also_after_an_error(cuda):
    backend = gpu.CudaBackend(torch.device("cuda", 1))
    assert (cuda.cupy_device, cuda.torch_device) == (0, 0)
    with backend.current():
        # PC-75: both libraries count the visible devices alike, and get the same number.
        assert (cuda.cupy_device, cuda.torch_device, cuda.stream) == (1, 1, 11)
    with pytest.raises(KeyError), backend.current():
        raise KeyError
    assert (cuda.cupy_device, cuda.torch_device, cuda.stream) == (0, 0, None)


def test_streams_of_pytorch_are_those_that_cupy_takes():
    assert hasattr(torch.cuda.Stream, "__cuda_stream__")


def test_pc75_the_current_device_is_taken_if_none_is_named(cuda):
    cuda.torch_device = 1
    assert gpu.CudaBackend(torch.device("cuda")).device == torch.device("cuda", 1)


def test_pc04_work_on_another_stream_waits_for_the_last_one(cuda):
    """The buffers are shared: a stream must not write to what another still reads."""
    backend = gpu.CudaBackend(torch.device("cuda", 0))
    with backend.current():
        pass
    with backend.current():
        pass
    assert cuda.log == [("record", 10), ("record", 10)]
    cuda.streams[0] = Stream(77, cuda.log)
    with backend.current():
        assert cuda.log[-1] == ("wait", 77, "end of 10")
        assert cuda.stream == 77
    seen = []
    backend.used([types.SimpleNamespace(record_stream=lambda stream: seen.append(stream.cuda_stream))])
    assert seen == [77]


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.bool, torch.int64]
)
def test_pc104_tensors_as_kernels_take_them(dtype):
    """The same table on the CPU path, by the codec for tensors of the host."""
    device, codec = torch.device("cpu"), gpu.tensor_codec("cpu")
    base = torch.from_numpy(trained(12, 8)).to(dtype)
    for tensor in (base, base.t(), base[:, ::2], base[:1].expand(5, 8), base[:0], base[3:7, 2:3]):
        held = gpu.contiguous(tensor, device)
        assert held.is_contiguous() and torch.equal(held, tensor)
        one = gpu.matrix(held)
        assert (one.rows, one.columns, wire.DTYPES[one.dtype]) == (*tensor.shape, str(dtype).removeprefix("torch."))
        assert one.size == held.numel() * held.element_size() and one.address == held.data_ptr()
        payload, out = codec.encode([tensor], 0.01), torch.empty(tensor.shape, dtype=dtype)
        codec.decode(payload, [out])
        if dtype in (torch.float64, torch.bool, torch.int64):
            assert torch.equal(out, tensor)
    if dtype.is_floating_point:
        assert not gpu.contiguous(base.clone().requires_grad_(), device).requires_grad
        codec.encode([base.clone().requires_grad_()], 0.01)


def test_pc104_what_no_codec_takes_is_a_type_error():
    device = torch.device("cpu")
    for dtype in (torch.complex64, torch.float8_e4m3fn):
        with pytest.raises(TypeError, match="cannot be encoded"):
            gpu.contiguous(torch.zeros(2, 2).to(dtype), device)
    with pytest.raises(ValueError, match="rows and columns"):
        gpu.contiguous(torch.zeros(3), device)
    with pytest.raises(ValueError, match="this codec is for cuda:1"):
        gpu.contiguous(torch.zeros(3, 3), torch.device("cuda", 1))


def test_the_codec_of_the_host_makes_the_same_payload():
    tables = [torch.from_numpy(trained(50, 4)), torch.from_numpy(trained(20, 16))]
    payload = gpu.HostCodec().encode(tables, 0.01, ["dedup", "bitpack"])
    assert payload.numpy().tobytes() == Codec().encode(tables, 0.01, ["dedup", "bitpack"]).tobytes()
    outs = [torch.empty(4, 50).t(), torch.empty(20, 16)]
    gpu.HostCodec().decode(payload, outs)
    for table, out in zip(tables, outs, strict=True):
        assert np.abs(table.numpy() - out.numpy()).max() <= 0.01
