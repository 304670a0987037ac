"""Encodes and decodes the keys and values of `__consumer_offsets` from a table of their fields.

Each key and each value begins with a 16-bit version. The table is in the notation of the wire
messages (`wire.schema.notation`).
"""

from __future__ import annotations

import struct
from functools import cached_property
from typing import Final, TypeVar

from penstock.wire.compile_decode import Decoder, compile_decoder
from penstock.wire.compile_encode import Encoder, compile_encoder
from penstock.wire.errors import ProtocolError
from penstock.wire.messages.base import Message
from penstock.wire.schema.notation import MessageSchema, parse_message, split_table

_VERSION: Final = struct.Struct(">h")
_ELEMENTS_MAX: Final = 4_000_000
M = TypeVar("M", bound=Message)


class VersionTooNew(ProtocolError):
    """The record was written by a newer version of Penstock or Kafka."""

    def __init__(self, name: str, version: int) -> None:
        super().__init__(f"{name} version {version} is too new for this broker; upgrade the broker")
        self.name = name
        self.version = version


class RecordCodec:
    """The codec of one table. It is compiled when it is first used."""

    def __init__(self, table: str) -> None:
        self._table = table
        self._encoders: dict[tuple[str, int], Encoder] = {}
        self._decoders: dict[tuple[str, int], Decoder] = {}

    @cached_property
    def _schemas(self) -> dict[str, MessageSchema]:
        return {name: parse_message(text) for name, text in split_table(self._table).items()}

    def encode(self, message: Message, version: int) -> bytes:
        name = type(message).__name__
        if (name, version) not in self._encoders:
            self._encoders[name, version] = compile_encoder(self._schemas[name], version)
        encode = self._encoders[name, version]
        return b"".join(encode(message, bytearray(_VERSION.pack(version))))

    def decode(self, message_class: type[M], data: bytes) -> M:
        """Returns the message; raises ProtocolError if the data is damaged, and VersionTooNew if
        its version is not known."""
        name = message_class.__name__
        version = read_version(name, data)
        if not self._schemas[name].versions.cover(version):
            raise VersionTooNew(name, version)
        if (name, version) not in self._decoders:
            schema = self._schemas[name]
            self._decoders[name, version] = compile_decoder(schema, message_class, version)
        data = bytes(data)
        try:
            decode = self._decoders[name, version]
            message: M = decode(data, 2, len(data), _ELEMENTS_MAX)[0]
        except (IndexError, UnicodeDecodeError, struct.error) as error:
            raise ProtocolError(f"{name} version {version} is damaged: {error}") from error
        return message


def read_version(name: str, data: bytes) -> int:
    if len(data) < 2:
        raise ProtocolError(
            f"{name} of {len(data)} bytes in __consumer_offsets is too short for a version"
        )
    version: int = _VERSION.unpack_from(data)[0]
    return version
