"""The codec's CUDA kernels: how fast they are, next to a copy and to nvCOMP, and what memory traffic allows."""
