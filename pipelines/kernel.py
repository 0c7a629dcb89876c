"""Compiled functions of `prepare`, and where their machine code is kept.

Numba recompiles a cached function when its own file changes, but not when a function changes that it calls in another
file: after an update of Thinwire it could run old code. So the folder of the cache, `prepare-DIGEST`, has a digest of
all the sources in its name. It lies in `NUMBA_CACHE_DIR` if that is set, else in `$XDG_CACHE_HOME/thinwire`
(`~/.cache/thinwire`).
"""

from __future__ import annotations

import functools
import hashlib
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import numba
from numba.core import config

_Function = TypeVar("_Function", bound=Callable)

SOURCES = ("columns", "encode", "intern", "kernel", "keys", "layout", "parse", "ranking", "splits", "swar", "tokens")
"""Modules of this package that hold compiled functions or constants that these use."""


def kernel(function: _Function) -> _Function:
    """Compiles a function at its first call, without Python objects and with the interpreter's lock released."""
    before = config.CACHE_DIR
    config.CACHE_DIR = str(Path(before or _user_cache()) / f"prepare-{_digest()}")
    try:
        return numba.njit(cache=True, nogil=True)(function)
    finally:
        config.CACHE_DIR = before


def _user_cache() -> Path:
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "thinwire"
    except RuntimeError:  # a user without a home, as in some containers
        return Path(tempfile.gettempdir()) / "thinwire"


@functools.cache
def _digest() -> str:
    digest = hashlib.sha256()
    for name in SOURCES:
        digest.update(Path(__file__).with_name(f"{name}.py").read_bytes())
    return digest.hexdigest()[:16]
