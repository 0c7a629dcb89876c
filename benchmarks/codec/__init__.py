"""The codec next to its peers, on real and on trained embedding batches."""
