"""Access frequencies, the cost model, the planner and the replicated hot rows."""
