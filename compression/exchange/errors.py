"""What can go wrong between ranks."""


class ExchangeError(RuntimeError):
    """A message did not come, or not the one that was to come. The ranks are out of step: end the run."""


class BoundError(RuntimeError):
    """A decoded value is farther from the encoded one than its bound allows: a fault of the codec."""
