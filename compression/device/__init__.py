"""What launches the codec's kernels: the same for a GPU (`compression.gpu`) and for the tests' stand-in of one.

- `backend`: what a device must do, and buffers that grow; `sources`: the CUDA sources, and the cache of machine code.
- `records`, `coded`: what kernels read of tables and messages, and their working memory.
- `tables`: encode and decode the tables of many messages in one launch a stage; `codec`: that, and what has no kernel.
- `ids`: lists of ids; `lookups`: distinct ids, pooling, gradients.
"""
