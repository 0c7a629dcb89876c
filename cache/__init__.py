"""Frequent rows of embedding tables on every rank, with exact sync: docs/cache.md. It needs NumPy, Numba and torch."""
