"""Which names a user may have. All mechanisms use the same check.

`*` is every user in an access rule, and `ANONYMOUS` is the user of a connection that is not
authenticated. A client that could log in with such a name would have rights that nobody gave it.
Characters that are not printed, and spaces at the ends, make two names look the same in a log or a
rule, and can change how a terminal shows them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from penstock.security.exchange import NAME_BYTES_MAX


def name_problem(user: str) -> str | None:
    """Returns why nobody may have this name, or None. The text has nothing of the name."""
    if not user:
        return "the name of the user is empty: give it a name"
    if (meaning := _RESERVED.get(user)) is not None:
        return f"the name of the user means {meaning}: choose another"
    if not user.isprintable():
        return "the name of the user has characters that cannot be printed: remove them"
    if user != user.strip():
        return "the name of the user begins or ends with white space: remove it"
    size = len(user.encode())
    if size > NAME_BYTES_MAX:
        return f"the name of the user has {size} bytes: use at most {NAME_BYTES_MAX}"
    return None


_RESERVED: Final[Mapping[str, str]] = {
    "*": "every user in access rules",
    "ANONYMOUS": "a client that is not authenticated",
}
