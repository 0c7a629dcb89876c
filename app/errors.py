"""Ends of a run that are not the user's mistake, each told in one line."""


class LostError(RuntimeError):
    """A run ended for what happened to its hosts or links."""


class LostHostError(LostError):
    """A host of the workers is lost, and the run cannot go on: which, with which ranks, what to do."""


class CollectiveTimeoutError(LostError):
    """A rank waited for the others longer than `cluster.collective_timeout_s`."""
