"""Compiled functions of `prepare`; see `compression.kernel` for where their machine code is kept."""

from __future__ import annotations

from pathlib import Path

from compression.kernel import kernels

SOURCES = ("columns", "encode", "intern", "kernel", "keys", "layout", "parse", "ranking", "splits", "swar", "tokens")
"""Modules of this package that hold compiled functions or constants that these use."""

kernel = kernels("prepare", Path(__file__).parent, SOURCES)
"""Compiles a function at its first call, without Python objects and with the interpreter's lock released."""
