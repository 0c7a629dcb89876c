"""Frequent rows of embedding tables: counts, a cost model of the exchange, the planner, and replicas with exact sync.

docs/cost-model.md and docs/cache.md are the guides. It needs NumPy, SciPy, Numba and torch.
"""
