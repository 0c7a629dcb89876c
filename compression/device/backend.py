"""What a device does for the codec, and its working memory."""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

FOLDER = Path(__file__).resolve().parent.parent / "kernels"
"""Of the CUDA sources."""
THREADS = 256
"""Threads of a block, of every kernel."""
WARPS = THREADS // 32
MOST_GRID = 2**31 - 1
"""Blocks of a launch."""


class Backend(Protocol):
    """A device: its memory by address, and launches in the order in which they are made."""

    def allocate(self, size: int) -> Any:
        """Bytes of device memory, not initialised, that live as long as what is returned."""

    def room(self, size: int) -> int:
        """Bytes to allocate for a buffer of so many, so that it does not grow too often."""

    def address(self, memory: Any) -> int:
        """Of what `allocate` returned."""

    def upload(self, address: int, data: NDArray[Any]) -> None:
        """Copy a contiguous array to the device. `data` may be changed after the next `download`."""

    def zero(self, address: int, size: int) -> None:
        """Fill bytes with 0."""

    def download(self, address: int, size: int) -> NDArray[np.uint8]:
        """Copy bytes from the device, after all launches before it. Waits for them."""

    def launch(self, kernel: str, grid: tuple[int, int], arguments: tuple[int, ...]) -> None:
        """Start blocks of THREADS threads.

        Args:
            grid: blocks in x and y, each at least 1.
            arguments: addresses and integers, 64 bits each.
        """


def kernel_names(file: Path) -> list[str]:
    """The kernels of a file."""
    return re.findall(r'extern "C" __global__ void\s+(?:__launch_bounds__\([\w, ]+\)\s+)?(\w+)', file.read_text())


@functools.cache
def kernel_files() -> dict[str, str]:
    """The file of each kernel."""
    return {name: file.name for file in sorted(FOLDER.glob("*.cu")) for name in kernel_names(file)}


class Arena:
    """Named buffers of a device that grow, and are then kept: a codec that has seen its largest message allocates
    nothing any more."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self._memory: dict[str, Any] = {}
        self._sizes: dict[str, int] = {}

    def get(self, name: str, size: int) -> int:
        """The address of at least `size` bytes; what was in the buffer may be lost."""
        if self._sizes.get(name, -1) < size:
            self._memory.pop(name, None)  # first, so that the allocator can use it again
            self._sizes[name] = self.backend.room(size)
            self._memory[name] = self.backend.allocate(self._sizes[name])
        return self.backend.address(self._memory[name])

    def buffers(self) -> list[Any]:
        """What the backend allocated."""
        return list(self._memory.values())

    @property
    def size(self) -> int:
        """Bytes held."""
        return sum(self._sizes.values())

    def run(self, kernel: str, grid: int | tuple[int, int], *arguments: int) -> None:
        """Launch, but for an empty grid, which a device refuses."""
        x, y = grid if isinstance(grid, tuple) else (grid, 1)
        if x and y:
            self.backend.launch(kernel, (x, y), arguments)
