"""Bytes to messages and back: one codec per message and version, compiled when first used.

Three layers, each for its own caller:

- `encode` and `decode` turn a message of a given version into bytes and back;
- `encode_request`, `decode_request`, `encode_response`, `decode_response` add headers and, when
  encoding, the frame length. Decoding takes a frame as `framing` hands it out, without its length;
- `encode_embedded` and `decode_embedded` are for messages that clients put, behind their version,
  into opaque bytes.

Whatever the bytes are, a decoder returns a message or raises ProtocolError. Bytes that are left
over after a body are ignored, as Kafka ignores them: the frame says where the next request begins,
and a client a little ahead of its version must not lose its connection over them.

`records` are handed out as slices of the frame, uncopied, and live as long as they are held; all
other fields are copies. A response comes out as a list of buffers, large records among them as
they were given.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Final, NamedTuple, TypeVar

from penstock.wire import messages
from penstock.wire.api import ApiKey
from penstock.wire.compile_decode import Decoder, compile_decoder
from penstock.wire.compile_encode import Encoder, compile_encoder
from penstock.wire.errors import ErrorCode, ProtocolError
from penstock.wire.messages.base import Buffer, Message, Request, Response
from penstock.wire.primitives import skip_tags
from penstock.wire.schema import message_schema
from penstock.wire.schema.notation import Versions

M = TypeVar("M", bound=Message)
R = TypeVar("R", bound=Response)

REQUEST_ELEMENTS_MAX: Final = 100_000
"""Array elements a request may hold in all, so that none costs more than some 20 MiB or 0.3 s."""
RESPONSE_ELEMENTS_MAX: Final = 4_000_000
"""The same for responses: a client chose the broker it trusts, and asked for what it gets."""

_API_VERSIONS: Final = ApiKey.API_VERSIONS.value
"""A broker too old for the version asked of it answers in version 0, so the header of this one
response never has tagged fields: the client could not tell whether to expect them."""
_REQUEST_HEADER: Final = struct.Struct(">hhih")
_REQUEST_FRAME: Final = struct.Struct(">ihhih")
_RESPONSE_FRAME: Final = struct.Struct(">ii")
_INT32: Final = struct.Struct(">i")
_INT16: Final = struct.Struct(">h")
_UNSUPPORTED_VERSION: Final = _INT16.pack(ErrorCode.UNSUPPORTED_VERSION)
_MALFORMED: Final = (IndexError, UnicodeDecodeError, struct.error)
_UNENCODABLE: Final = (AttributeError, TypeError, UnicodeEncodeError, ValueError, struct.error)


class RequestHeader(NamedTuple):
    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None


class UnsupportedRequest(ProtocolError):
    """A sound header of an API or version that is not served; there is no telling what follows.

    An ApiVersions request is answered all the same, in version 0 and with UNSUPPORTED_VERSION, so
    that the client can try again lower.
    """

    def __init__(self, header: RequestHeader) -> None:
        super().__init__(
            f"API key {header.api_key} version {header.api_version} is not served here;"
            " ask with ApiVersions which are"
        )
        self.header = header


class _Codec(NamedTuple):
    message_class: type[Message]
    flexible: bool
    keeps_frame: bool
    decode: Decoder
    encode: Encoder


_codecs: dict[tuple[type[Message], int], _Codec] = {}
_request_codecs: dict[tuple[int, int], _Codec] = {}


def encode(message: Message, version: int) -> bytes:
    return b"".join(encode_parts(message, version))


def encode_parts(message: Message, version: int) -> list[Buffer]:
    """As `encode`, but large records stay apart: for a writer that gathers buffers."""
    return _encode_onto(_codec(type(message), version), message, version, bytearray())


def decode(
    message_class: type[M],
    buffer: Buffer,
    version: int,
    *,
    elements_max: int = RESPONSE_ELEMENTS_MAX,
) -> M:
    message, _ = decode_at(message_class, buffer, version, 0, elements_max=elements_max)
    return message


def decode_at(
    message_class: type[M],
    buffer: Buffer,
    version: int,
    position: int,
    *,
    elements_max: int = RESPONSE_ELEMENTS_MAX,
) -> tuple[M, int]:
    """Decode the message that starts at `position`; also returns the position after it."""
    codec = _codec(message_class, version)
    message, end = _decode_from(codec, buffer, version, position, elements_max)
    assert isinstance(message, message_class)
    return message, end


def decode_header(frame: memoryview) -> RequestHeader:
    """Only the header: all there is to know of a request in a version we do not have."""
    return _read_header(frame)[0]


def decode_request(
    frame: memoryview,
    served: Mapping[int, Versions] | None = None,
    *,
    elements_max: int = REQUEST_ELEMENTS_MAX,
) -> tuple[RequestHeader, Request]:
    """The header and the message of a request.

    Raises UnsupportedRequest for an API or version outside `served`, or, without it, outside our
    tables.
    """
    header, position = _read_header(frame)
    key, version = header[:2]
    if served is not None and (key not in served or not served[key].cover(version)):
        raise UnsupportedRequest(header)
    codec = _request_codecs.get((key, version))
    if codec is None:
        found = request_class(key)
        if found is None or not _versions(found).cover(version):
            raise UnsupportedRequest(header)
        codec = _request_codecs[key, version] = _codec(found, version)
    if codec.flexible:
        position, elements_max = _skip_header_tags(frame, position, elements_max)
    message, _ = _decode_from(codec, frame, version, position, elements_max)
    return header, message  # type: ignore[return-value]


def encode_request(
    message: Request, version: int, correlation_id: int, client_id: str | None
) -> list[Buffer]:
    """A whole frame, its length first."""
    codec = _codec(type(message), version)
    client = b"" if client_id is None else client_id.encode()
    client_length = -1 if client_id is None else len(client)
    try:
        start = bytearray(
            _REQUEST_FRAME.pack(0, message.API_KEY, version, correlation_id, client_length)
        )
    except struct.error as error:
        raise ProtocolError(
            f"a request header cannot hold these values ({error}):"
            " ids are 32 bits, a client id is at most 32767 bytes"
        ) from error
    start += client
    if codec.flexible:
        start.append(0)
    return _framed(_encode_onto(codec, message, version, start))


def encode_response(message: Response, version: int, correlation_id: int) -> list[Buffer]:
    """A whole frame, its length first."""
    codec = _codec(type(message), version)
    start = bytearray(_RESPONSE_FRAME.pack(0, correlation_id))
    if codec.flexible and message.API_KEY != _API_VERSIONS:
        start.append(0)
    return _framed(_encode_onto(codec, message, version, start))


def response_correlation_id(frame: memoryview) -> int:
    """Which request a response answers: what the client must know before it can decode it."""
    if len(frame) < 4:
        raise ProtocolError(f"a response of {len(frame)} bytes is too short for its header")
    correlation_id: int = _INT32.unpack_from(frame)[0]
    return correlation_id


def decode_response(
    message_class: type[R],
    frame: memoryview,
    version: int,
    *,
    elements_max: int = RESPONSE_ELEMENTS_MAX,
) -> tuple[int, R]:
    """The correlation id and the message of a response.

    A broker that does not have the version of ApiVersions it was asked for says so in version 0.
    """
    correlation_id = response_correlation_id(frame)
    position = 4
    if message_class.API_KEY == _API_VERSIONS and frame[4:6] == _UNSUPPORTED_VERSION:
        version = 0
    codec = _codec(message_class, version)
    if codec.flexible and message_class.API_KEY != _API_VERSIONS:
        position, elements_max = _skip_header_tags(frame, position, elements_max)
    message, _ = _decode_from(codec, frame, version, position, elements_max)
    return correlation_id, message  # type: ignore[return-value]


def encode_embedded(message: Message, version: int) -> bytes:
    """A message behind its own version, as consumers put subscriptions into JoinGroup."""
    return _INT16.pack(version) + encode(message, version)


def decode_embedded(message_class: type[M], buffer: Buffer) -> tuple[int, M]:
    """The version that was written and the message.

    A version newer than ours is read as our newest: such messages only ever grow at their end.
    """
    if len(buffer) < 2:
        raise ProtocolError(f"{message_class.__name__}: {len(buffer)} bytes hold no version")
    version: int = _INT16.unpack_from(buffer)[0]
    known = min(version, _versions(message_class).last)
    message, _ = decode_at(
        message_class, bytes(buffer), known, 2, elements_max=REQUEST_ELEMENTS_MAX
    )
    return version, message


def request_class(api_key: int) -> type[Request] | None:
    """The class of an API's requests; None for an API we have no tables for."""
    try:
        name = ApiKey(api_key).api_name
    except ValueError:
        return None
    found: type[Request] = getattr(messages, f"{name}Request")
    return found


def response_class(api_key: ApiKey) -> type[Response]:
    """The class of an API's responses."""
    found: type[Response] = getattr(messages, f"{api_key.api_name}Response")
    return found


def prepare(api_key: ApiKey) -> None:
    """Compile an API's newest version now; others, as all, when they are first used."""
    for message_class in (request_class(api_key), response_class(api_key)):
        if message_class is not None:
            _codec(message_class, _versions(message_class).last)


def _versions(message_class: type[Message]) -> Versions:
    return message_schema(message_class.__name__).versions


def _codec(message_class: type[Message], version: int) -> _Codec:
    codec = _codecs.get((message_class, version))
    if codec is None:
        schema = message_schema(message_class.__name__)
        if not schema.versions.cover(version):
            first, last = schema.versions
            raise ProtocolError(
                f"{schema.name} has no version {version}; use one of {first} to {last}"
            )
        codec = _codecs[message_class, version] = _Codec(
            message_class,
            schema.flexible.cover(version),
            schema.has_records(),
            compile_decoder(schema, message_class, version),
            compile_encoder(schema, version),
        )
    return codec


def _decode_from(
    codec: _Codec, buffer: Buffer, version: int, position: int, elements_max: int
) -> tuple[Message, int]:
    if not codec.keeps_frame:
        data: Buffer = bytes(buffer)
    else:
        data = buffer if type(buffer) is memoryview else memoryview(buffer)
    size = len(data)
    try:
        return codec.decode(data, position, size, elements_max)
    except ProtocolError as error:
        raise ProtocolError(_where(codec, version, str(error))) from None
    except UnicodeDecodeError as error:
        raise ProtocolError(_where(codec, version, f"a string is not UTF-8: {error}")) from error
    except _MALFORMED as error:
        raise ProtocolError(
            _where(codec, version, f"the message goes on beyond the {size} bytes it has")
        ) from error


def _encode_onto(codec: _Codec, message: Message, version: int, start: bytearray) -> list[Buffer]:
    try:
        return codec.encode(message, start)
    except ProtocolError as error:
        raise ProtocolError(_where(codec, version, str(error))) from None
    except _UNENCODABLE as error:
        raise ProtocolError(
            _where(codec, version, f"a value does not fit its field: {error}")
        ) from error


def _where(codec: _Codec, version: int, what: str) -> str:
    return f"{codec.message_class.__name__} v{version}: {what}"


def _read_header(frame: memoryview) -> tuple[RequestHeader, int]:
    if len(frame) < 10:
        raise ProtocolError(f"a request of {len(frame)} bytes is too short for its header")
    key, version, correlation_id, length = _REQUEST_HEADER.unpack_from(frame)
    if length < 0:
        return RequestHeader(key, version, correlation_id, None), 10
    end = 10 + length
    if end > len(frame):
        raise ProtocolError("the client id ends beyond the end of the frame")
    try:
        client_id = str(frame[10:end], "utf-8")
    except UnicodeDecodeError as error:
        raise ProtocolError(f"the client id is not UTF-8: {error}") from error
    return RequestHeader(key, version, correlation_id, client_id), end


def _skip_header_tags(frame: memoryview, position: int, budget: int) -> tuple[int, int]:
    if position < len(frame) and frame[position] == 0:
        return position + 1, budget
    try:
        return skip_tags(frame, position, len(frame), budget)
    except IndexError as error:
        raise ProtocolError("the header goes on beyond the end of the frame") from error


def _framed(parts: list[Buffer]) -> list[Buffer]:
    start = parts[0]
    assert isinstance(start, bytearray)
    _INT32.pack_into(start, 0, sum(map(len, parts)) - 4)
    return parts
