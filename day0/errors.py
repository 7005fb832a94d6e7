"""The one exception a user sees: what is wrong, and what to do about it."""


class Day0Error(Exception):
    """A failure a user can act on. Raised anywhere, caught only in `day0.cli`.

    `message` says in one line what is wrong, `hint` in one line what to do. `exit_code` is 2 ("could not run") unless
    a subclass says otherwise.
    """

    exit_code = 2

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}\n{self.hint}" if self.hint else self.message
