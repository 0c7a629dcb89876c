"""CUDA kernels on the CPU, for tests: the same sources compiled by g++, a process that runs them, a `Backend` on it."""
