"""The error that a user can mend."""


class UserError(Exception):
    """A mistake in what the user gave. The command prints it as one line and exits with code 2.

    Args:
        what: what is wrong, with the value.
        where: the file, key or column.
        fix: what to do about it.
    """

    def __init__(self, what: str, *, where: str = "", fix: str = "") -> None:
        self.what, self.where, self.fix = what, where, fix
        super().__init__(what, where, fix)

    def __str__(self) -> str:
        place = f"{self.where}: " if self.where else ""
        remedy = f" ({self.fix})" if self.fix else ""
        return f"{place}{self.what}{remedy}"

    def __reduce__(self) -> tuple:
        # Errors travel from Ray workers to the driver, and keyword arguments do not survive the default.
        return _rebuild, (type(self), self.what, self.where, self.fix)


def _rebuild(kind: type[UserError], what: str, where: str, fix: str) -> UserError:
    return kind(what, where=where, fix=fix)
