"""Encodes and decodes messages in records: a 16-bit version, then the message in that version.

The records of Kafka's internal topics have such keys and values. Their schemas are written in the
notation of `schema.notation`. `StoredMessages` compiles each codec on first use.
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


class StoredMessages:
    """The codecs of one topic's messages. A message class has the name of its schema."""

    def __init__(self, topic: str, table: str) -> None:
        self._topic = topic
        self._table = table
        self._encoders: dict[tuple[str, int], Encoder] = {}
        self._decoders: dict[tuple[str, int], Decoder] = {}

    @cached_property
    def _schemas(self) -> dict[str, MessageSchema]:
        return {name: parse_message(text) for name, text in split_table(self._table).items()}

    def encode(self, message: Message, version: int) -> bytes:
        name = type(message).__name__
        encode = self._encoders.get((name, version))
        if encode is None:
            encode = compile_encoder(self._schemas[name], version)
            self._encoders[name, version] = encode
        return b"".join(encode(message, bytearray(_VERSION.pack(version))))

    def decode(self, message_class: type[M], data: bytes) -> M:
        """Returns the message. Raises `ProtocolError` if it is damaged or its version unknown."""
        name = message_class.__name__
        version = self.version(data)
        if not self._schemas[name].versions.cover(version):
            raise ProtocolError(
                f"{name} version {version} in {self._topic} is newer than this broker knows; "
                "upgrade the broker"
            )
        decode = self._decoders.get((name, version))
        if decode is None:
            decode = compile_decoder(self._schemas[name], message_class, version)
            self._decoders[name, version] = decode
        data = bytes(data)
        try:
            message: M = decode(data, _VERSION.size, len(data), _ELEMENTS_MAX)[0]
        except (IndexError, UnicodeDecodeError, struct.error) as error:
            raise ProtocolError(
                f"{name} version {version} in {self._topic} is damaged: {error}"
            ) from error
        return message

    def version(self, data: bytes) -> int:
        if len(data) < _VERSION.size:
            raise ProtocolError(f"{len(data)} bytes in {self._topic} are too few for a version")
        version: int = _VERSION.unpack_from(data)[0]
        return version
