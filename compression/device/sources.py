"""The CUDA sources as the run-time compiler takes them, and where what it makes of them is kept."""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
from collections.abc import Callable
from pathlib import Path

from compression.device.backend import FOLDER
from compression.kernel import user_cache

OPTIONS = ("--std=c++17", "--fmad=false", "--diag-suppress=177")
"""No fused multiply-add, and subnormals are kept: the bytes are to be those of the CPU codec. 177: a constant of a
header that a file does not need."""
ARCHITECTURES = ("80", "90", "100")
"""Those that the tests compile for: A100, H100 and H200, B200."""
_INCLUDE = re.compile(r'^#include "(\w+\.cuh)"$', re.M)


def source_of(file: str) -> str:
    """A .cu file with all that it includes, each once: it can be compiled without a folder of headers."""
    seen: set[str] = set()

    def expand(name: str) -> str:
        if name in seen:
            return ""
        seen.add(name)
        text = (FOLDER / name).read_text().replace("#pragma once\n", "")
        return _INCLUDE.sub(lambda match: expand(match[1]), text)

    return expand(file)


def cache_folder() -> Path:
    """`THINWIRE_KERNEL_CACHE` if it is set, else `thinwire/kernels` in the user's cache (see `compression.kernel`)."""
    named = os.environ.get("THINWIRE_KERNEL_CACHE")
    return Path(named) if named else user_cache() / "kernels"


def binary_of(file: str, arch: str, compiler: str, compile_: Callable[[str], bytes], folder: Path) -> Path:
    """The machine code of a .cu file, from the cache or compiled into it.

    Args:
        arch: as "90"; compiler: its name and version.
        compile_: machine code of a source.
        folder: of the cache; made if it is missing.

    Raises:
        OSError: the folder cannot be written to.
    """
    text = source_of(file)
    digest = hashlib.sha256("\0".join([text, arch, compiler, *OPTIONS]).encode()).hexdigest()[:16]
    target = folder / f"{file.removesuffix('.cu')}-sm_{arch}-{digest}.cubin"
    if not target.exists():
        made = compile_(text)
        folder.mkdir(parents=True, exist_ok=True)
        # Several processes of a host start at once: each writes a file of its own, and the last one stays.
        with tempfile.NamedTemporaryFile(dir=folder, delete=False) as part:
            part.write(made)
        Path(part.name).replace(target)
    return target
