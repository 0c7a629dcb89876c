"""Several hosts with rate-limited links on one machine, and a Ray cluster over them."""

from benchmarks.lab.lab import Lab

__all__ = ["Lab"]
