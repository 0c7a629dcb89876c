"""Compiled functions, and where their machine code is kept.

Numba recompiles a cached function when its own file changes, but not when a function changes that it calls in another
file: after an update of Thinwire it could run old code. So the folder of the cache, `NAME-DIGEST`, has a digest of all
the sources in its name. It lies in `NUMBA_CACHE_DIR` if that is set, else in `$XDG_CACHE_HOME/thinwire`
(`~/.cache/thinwire`).
"""

from __future__ import annotations

import functools
import hashlib
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numba
from numba.core import config

_Function = TypeVar("_Function", bound=Callable)


def kernels(name: str, folder: Path, modules: tuple[str, ...]) -> Callable[[_Function], Any]:
    """A decorator that compiles a function at its first call, without Python objects and with the interpreter's lock
    released.

    Args:
        name: of the cache's folder.
        folder, modules: the Python files that hold compiled functions or constants that these use.
    """

    @functools.cache
    def digest() -> str:
        found = hashlib.sha256()
        for module in modules:
            found.update((folder / f"{module}.py").read_bytes())
        return found.hexdigest()[:16]

    def decorate(function: _Function) -> Any:
        before = config.CACHE_DIR
        config.CACHE_DIR = str(Path(before or user_cache()) / f"{name}-{digest()}")
        try:
            return numba.njit(cache=True, nogil=True)(function)
        finally:
            config.CACHE_DIR = before

    return decorate


def user_cache() -> Path:
    """The folder for what can be made again."""
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "thinwire"
    except RuntimeError:  # a user without a home, as in some containers
        return Path(tempfile.gettempdir()) / "thinwire"


kernel = kernels(
    "compression",
    Path(__file__).parent,
    ("kernel", "bitpack", "bits", "checksum", "codewords", "dedup", "entropy", "huffman", "id_lists", "id_values",
     "ids", "lanes", "message", "model", "planes", "predict", "quantize", "references", "rows", "shapes", "symbols",
     "tables", "tiles", "transpose", "vector_lz", "wire"),
)  # fmt: skip
"""Compiles the functions of this package."""


def inner(function: _Function) -> Any:
    """Compiles a function that only compiled ones call, in about half the time: without what Python needs to call it,
    which would crash, and without a place in the cache."""
    return numba.njit(nogil=True, no_cpython_wrapper=True, no_cfunc_wrapper=True)(function)
