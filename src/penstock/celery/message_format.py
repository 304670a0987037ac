"""Kombu's messages as records, and back. Pure.

The value of a record is the body of the message, as the serializer of the task has written it.
Everything else is JSON in one header. Records of exchanges have their routing key in another.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, Final

from kombu.utils import json

from penstock.client.model import Headers

MESSAGE: Final = "celery-message"
ROUTING_KEY: Final = "celery-routing-key"
EXPIRES_MS: Final = "penstock_expires_ms"
"""A property of our own: when the message expires."""
PRIORITY_MAX: Final = 9
"""The highest priority in kombu, unless the queue has `x-max-priority`."""

# Kombu's JSON knows times and UUIDs. It has no types.
_dumps: Final[Callable[[Any], str]] = json.dumps
_loads: Final[Callable[[str], Any]] = json.loads

Message = dict[str, Any]
"""A message as kombu's virtual transports have it."""


class NotAMessage(ValueError):
    """A record was not written by this transport."""


def encode(message: Mapping[str, Any], routing_key: str | None = None) -> tuple[bytes, Headers]:
    """Returns the value and the headers of the record for a message."""
    rest = {name: value for name, value in message.items() if name != "body"}
    headers: list[tuple[str, bytes | None]] = [(MESSAGE, _dumps(rest).encode())]
    if routing_key is not None:
        headers.append((ROUTING_KEY, routing_key.encode()))
    body = message["body"]
    return body.encode() if isinstance(body, str) else bytes(body or b""), tuple(headers)


def decode(value: bytes | None, header: bytes | None, tag: str, *, redelivered: bool) -> Message:
    """Returns the message of a record. `tag` identifies this delivery of it."""
    if header is None:
        raise NotAMessage(f"the record has no header {MESSAGE}: it was not sent by a Celery client")
    try:
        message: Message = _loads(header.decode())
        properties = message["properties"]
        info = properties.setdefault("delivery_info", {})
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise NotAMessage(f"the header {MESSAGE} is damaged: {error!r}") from error
    properties["delivery_tag"] = tag
    info["redelivered"] = redelivered or bool(info.get("redelivered"))
    message["body"] = value or b""
    return message


def as_redelivered(message: Mapping[str, Any]) -> Message:
    """Returns a copy of a message, marked as delivered before."""
    properties = dict(message["properties"])
    properties["delivery_info"] = {**properties.get("delivery_info", {}), "redelivered": True}
    return {**message, "properties": properties}


def delay_s(message: Mapping[str, Any], now_ms: int) -> float | None:
    """Returns in how many seconds the task is due; None if it is due now.

    Celery writes the time in the header `eta`. A time without a time zone is in UTC.
    """
    eta = (message.get("headers") or {}).get("eta")
    if isinstance(eta, str):
        try:
            eta = datetime.fromisoformat(eta)
        except ValueError:
            return None
    if not isinstance(eta, datetime):
        return None
    aware = eta if eta.tzinfo is not None else eta.replace(tzinfo=UTC)
    left_s = aware.timestamp() - now_ms / 1000
    return left_s if left_s > 0 else None


def expires_ms(
    message: Mapping[str, Any], queue_ttl_ms: int | None, delay: float | None, now_ms: int
) -> int | None:
    """Returns when the message expires, in milliseconds since 1970; None if it does not.

    That is after its property `expiration`, or after the queue's `x-message-ttl` if this is less,
    both in milliseconds, and counted from the time when the message is due. A message that is put
    a second time keeps its time.

    A task that has expired before it is sent has the `expiration` 0. It does not count: a worker
    gets the task, and its result becomes REVOKED. The broker would drop it, and nobody would know.
    """
    properties = message.get("properties") or {}
    kept = properties.get(EXPIRES_MS)
    if isinstance(kept, int):
        return kept
    limits = [] if queue_ttl_ms is None else [queue_ttl_ms]
    with suppress(KeyError, TypeError, ValueError):
        limit = max(0, int(properties["expiration"]))
        if limit or not (message.get("headers") or {}).get("expires"):
            limits.append(limit)
    return now_ms + round((delay or 0.0) * 1000) + min(limits) if limits else None


def with_expiry(message: Mapping[str, Any], at_ms: int) -> Message:
    """Returns a copy of a message that remembers when it expires."""
    return {**message, "properties": {**message["properties"], EXPIRES_MS: at_ms}}


def priority_level(message: Mapping[str, Any], levels: int, highest: int = PRIORITY_MAX) -> int:
    """Returns the level of the topic, from 0, for the priority of a message."""
    try:
        priority = int(message["properties"]["priority"])
    except (KeyError, TypeError, ValueError):
        priority = 0
    return min(max(priority, 0), highest) * levels // (highest + 1)
