"""The errors of console requests. Each has an HTTP status and says what to do."""

from __future__ import annotations

from typing import ClassVar, Final

LOG_IN: Final = "log in with the token that the console printed"
SIGN_IN: Final = "you are not signed in: sign in with your user name and password"


class ConsoleError(Exception):
    """The base class. The message is shown to the user."""

    status: ClassVar[int] = 400


class BadRequest(ConsoleError):
    """The request is not valid."""


class NotFound(ConsoleError):
    status = 404


class ReadOnly(ConsoleError):
    status = 403

    def __init__(self) -> None:
        super().__init__(
            "this console is read-only: start one without --read-only to change anything"
        )


class NotAllowed(ConsoleError):
    status = 403


class Conflict(ConsoleError):
    """Somebody else made a change at the same time."""

    status = 409


class NotLoggedIn(ConsoleError):
    status = 401


class TooManyAttempts(ConsoleError):
    status = 429


class TooManySessions(ConsoleError):
    status = 503

    def __init__(self, most: int) -> None:
        super().__init__(f"{most} users are signed in, which is the limit: try again later")


class InternalError(ConsoleError):
    """A fault of the console. Its log has the cause."""

    status = 500


class NotReached(ConsoleError):
    """The cluster did not answer."""

    status = 503
