"""Error-bounded compression of embedding rows and gradients (arrives with the codec)."""
