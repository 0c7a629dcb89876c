"""What launches the codec's kernels: the same for a GPU (`compression.gpu`) and for the tests' stand-in of one.

- `backend`: what a device must do, and buffers that grow.
- `records`: what kernels read of tables and messages.
- `tables`: encode and decode the tables of many messages in one launch a stage.
"""
