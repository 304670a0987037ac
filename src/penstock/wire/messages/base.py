"""What all message classes share.

The classes are generated from the tables in `penstock.wire.schema`, one per message for all its
versions: the version belongs to the codec. They behave like dataclasses with slots, but their
`__init__` is written out: making 250 dataclasses takes 150 ms at import, these take 3.
"""

from __future__ import annotations

from typing import Any, ClassVar, Final

Buffer = bytes | bytearray | memoryview

EMPTY: Final[Any] = object()
"""Stands for "a new empty one" where a default must not be shared between messages."""


class Struct:
    """A group of fields; equal when of one class and all fields are equal."""

    __slots__: tuple[str, ...] = ()
    # As Python does for classes that define only `__eq__`: messages can be changed.
    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in self.__slots__)

    def __repr__(self) -> str:
        fields = (f"{name}={_show(name, getattr(self, name))}" for name in self.__slots__)
        return f"{type(self).__qualname__}({', '.join(fields)})"


class Message(Struct):
    """The root struct of a message."""

    __slots__ = ()


class Request(Message):
    __slots__ = ()
    API_KEY: ClassVar[int]


class Response(Message):
    __slots__ = ()
    API_KEY: ClassVar[int]


def _show(name: str, value: object) -> str:
    """Bytes are records, passwords or tokens: too long or too secret for a log. Ids are neither."""
    if isinstance(value, bytes | bytearray | memoryview):
        return value.hex() if name.endswith("_id") else f"<{len(value)} bytes>"
    return repr(value)
