"""A device that is a process on the CPU, whose memory is watched by AddressSanitizer. See `runner.cpp`."""

from __future__ import annotations

import contextlib
import hashlib
import shutil
import subprocess
import tempfile
from collections import Counter
from pathlib import Path
from typing import IO, Any, cast

import numpy as np
from filelock import FileLock
from numpy.typing import NDArray

from compression.device.backend import FOLDER, THREADS, kernel_files, kernel_names

HERE = Path(__file__).resolve().parent
FLAGS = [
    "-std=c++17", "-O1", "-g1", "-w", "-ffp-contract=off", "-fno-strict-aliasing", "-fno-omit-frame-pointer",
    "-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-static-libasan",
]  # fmt: skip
launched: Counter[str] = Counter()
"""Launches of each kernel in this process."""


class KernelError(Exception):
    """A kernel did what it must not; the message is the runner's report."""


def build(sources: list[Path], folder: Path) -> Path:
    """The runner with the kernels of these files; compiled once for each state of the sources."""
    compiler = shutil.which("g++")
    assert compiler, "the tests of kernels need g++"
    parts = [HERE / "runner.cpp", HERE / "shim.h", *sorted(FOLDER.glob("*.cuh")), *sources]
    digest = hashlib.sha256(b"\0".join([" ".join(FLAGS).encode(), *(file.read_bytes() for file in parts)]))
    target = folder / f"thinwire-cuda-on-cpu-{digest.hexdigest()[:16]}"
    with FileLock(f"{target}.lock"):
        if not target.exists():
            with tempfile.TemporaryDirectory(dir=folder) as work:
                _compile(compiler, sources, Path(work), target)
    return target


def _compile(compiler: str, sources: list[Path], work: Path, target: Path) -> None:
    jobs = []
    for number, source in enumerate(sources):
        names = kernel_names(source)
        table = ", ".join(f'{{"{name}", {{Call<{name}>::run, Call<{name}>::count}}}}' for name in names)
        text = f'#include "shim.h"\n#include "{source}"\n#include "call.h"\n'
        text += f"KernelTable kernels_{number}() {{ return {{{table}}}; }}\n"
        unit = work / f"{number}.cpp"
        unit.write_text(text)
        jobs.append(unit)
    calls = "".join(f"KernelTable kernels_{n}();\n" for n in range(len(sources)))
    inserts = "".join(f"for (auto &entry : kernels_{n}()) all.insert(entry);" for n in range(len(sources)))
    main = work / "main.cpp"
    main.write_text(
        f'#include "runner.cpp"\n{calls}const KernelTable &kernels() {{\n'
        f"static const KernelTable all = [] {{ KernelTable all; {inserts} return all; }}();\nreturn all;\n}}\n"
    )
    command = [compiler, *FLAGS, "-I", str(HERE), "-I", str(FOLDER), *map(str, jobs), str(main)]
    built = work / "built"
    subprocess.run([*command, "-o", str(built)], check=True)
    built.replace(target)


class CpuDevice:
    """A `Backend` whose launches run on the CPU.

    Args:
        seed: draws the order of blocks and threads; 0 for ascending.
        sources: files with kernels; those of the package if none are given.
    """

    def __init__(self, seed: int = 0, sources: list[Path] | None = None) -> None:
        files = sources or [FOLDER / name for name in sorted(set(kernel_files().values()))]
        program = build(files, Path(tempfile.gettempdir()))
        self.seed = seed
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - open as long as the process
        self._process = subprocess.Popen(
            [program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors,
            env={"ASAN_OPTIONS": "detect_leaks=0:abort_on_error=0", "UBSAN_OPTIONS": "print_stacktrace=1"},
        )  # fmt: skip
        self._in = cast(IO[bytes], self._process.stdin)
        self._out = cast(IO[bytes], self._process.stdout)
        self.allocated = 0

    def allocate(self, size: int) -> Any:
        self._send(b"a", size)
        self.allocated += 1
        return _Memory(self, int.from_bytes(self._receive(8), "little"))

    def room(self, size: int) -> int:
        return size  # no more, so that what is written behind it is seen

    def address(self, memory: Any) -> int:
        return memory.address

    def free(self, address: int) -> None:
        with contextlib.suppress(OSError, ValueError):
            self._send(b"f", address)

    def upload(self, address: int, data: NDArray[Any]) -> None:
        raw = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
        if not raw.size:
            return
        self._send(b"w", address, raw.size)
        self._write(raw.tobytes())

    def zero(self, address: int, size: int) -> None:
        self._send(b"z", address, size)

    def download(self, address: int, size: int) -> NDArray[np.uint8]:
        if not size:
            return np.empty(0, np.uint8)
        self._send(b"r", address, size)
        return np.frombuffer(self._receive(size), np.uint8).copy()

    def launch(self, kernel: str, grid: tuple[int, int], arguments: tuple[int, ...]) -> None:
        launched[kernel] += 1
        name = kernel.encode()
        self._write(b"l" + len(name).to_bytes(8, "little") + name)
        words = [*grid, THREADS, self.seed, len(arguments), *arguments]
        self._write(np.array([word % 2**64 for word in words], np.uint64).tobytes())
        assert self._receive(1) == b"k"

    def put(self, array: NDArray[Any]) -> _Memory:
        """Device memory of just this size with a copy of an array."""
        memory = self.allocate(array.nbytes)
        self.upload(memory.address, array)
        return memory

    def get(self, memory: _Memory, like: NDArray[Any]) -> NDArray[Any]:
        """Device memory as an array of the shape and dtype of another."""
        return self.download(memory.address, like.nbytes).view(like.dtype).reshape(like.shape)

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        for file in (self._in, self._out, self._errors):
            with contextlib.suppress(OSError):
                file.close()

    def _send(self, command: bytes, *numbers: int) -> None:
        self._write(command + b"".join((n % 2**64).to_bytes(8, "little") for n in numbers))

    def _write(self, data: bytes) -> None:
        try:
            self._in.write(data)
        except BrokenPipeError:
            self._fault()

    def _receive(self, size: int) -> bytes:
        if not size:
            return b""
        with contextlib.suppress(BrokenPipeError):
            self._in.flush()
        data = self._out.read(size)
        if len(data) != size:
            self._fault()
        return data

    def _fault(self) -> None:
        self._process.wait()
        self._errors.seek(0)
        raise KernelError(self._errors.read().decode(errors="replace"))


class _Memory:
    """Bytes of a `CpuDevice`, freed with this object."""

    def __init__(self, device: CpuDevice, address: int) -> None:
        self._device, self.address = device, address

    def __del__(self) -> None:
        self._device.free(self.address)
