"""What the embedding exchange costs: `thinwire bench exchange`.

`plan` says what is measured, `rank` measures it on each rank, `result` makes table, bars and plot of it.
"""
