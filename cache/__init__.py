"""Access frequencies, the cost model and the replicated hot rows (arrives with the cache)."""
