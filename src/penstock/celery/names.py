"""The names of topics: one for each queue and each exchange. Pure.

A queue has the topic of its own name, so that other clients find it. Names that are no legal topic
names, and names that are reserved, are escaped: `esc-` and the name, in which every character but
letters, digits, dots and hyphens is `_` and two hex digits for each of its bytes. No two names have
the same topic. A name that would be too long ends with its hash.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from hashlib import sha256
from typing import Final

_LEGAL: Final = re.compile(r"[A-Za-z0-9._-]{1,200}")
_ESCAPE: Final = "esc-"
_OWN: Final = "penstock."
_INTERNAL: Final = "__"
_LENGTH_MAX: Final = 200
"""Topic names have up to 249 characters. The rest is for prefixes."""
_HASH_DIGITS: Final = 40


def legal_name(name: str) -> str:
    """Returns the name of the topic for a queue or an exchange."""
    is_reserved = name in (".", "..") or name.startswith((_ESCAPE, _OWN, _INTERNAL))
    if _LEGAL.fullmatch(name) and not is_reserved:
        return name
    escaped = _ESCAPE + "".join(_escaped(each) for each in name)
    if len(escaped) <= _LENGTH_MAX:
        return escaped
    # "_" and a letter beyond "f" is no escape, so the name of no other queue looks like this.
    digest = sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:_HASH_DIGITS]
    return f"{escaped[: _LENGTH_MAX - _HASH_DIGITS - 2]}_h{digest}"


def _escaped(character: str) -> str:
    if character.isascii() and (character.isalnum() or character in ".-"):
        return character
    return "".join(f"_{byte:02x}" for byte in character.encode("utf-8", "surrogatepass"))


@dataclass(frozen=True, slots=True)
class Names:
    """The topics of one virtual host. The default host "/" has no prefix."""

    virtual_host: str = "/"

    @property
    def _prefix(self) -> str:
        host = self.virtual_host.strip("/")
        return f"{legal_name(host)}." if host else ""

    def queue_topic(self, queue: str) -> str:
        return self._prefix + legal_name(queue)

    def log_topic(self, exchange: str) -> str:
        """Returns the topic that queues of single clients read. The default exchange has no
        name."""
        name = f"exchange.{legal_name(exchange)}" if exchange else "default-exchange"
        return f"{self._prefix}penstock.celery.{name}"

    @property
    def bindings_topic(self) -> str:
        return f"{self._prefix}penstock.celery.bindings"
