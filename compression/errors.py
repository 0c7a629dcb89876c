"""The error of bytes that no encoder wrote."""


class CorruptPayloadError(ValueError):
    """A payload that is truncated, changed or foreign.

    Args:
        field: the part of the payload that shows it.
        problem: what is wrong with it.
    """

    def __init__(self, field: str, problem: str) -> None:
        self.field, self.problem = field, problem
        # Both as arguments, so that the error can be pickled on its way between processes.
        super().__init__(field, problem)

    def __str__(self) -> str:
        return f"corrupt payload: {self.field}: {self.problem}"
