"""Encodes and decodes messages, with one codec per message and version, compiled on first use.

There are three groups of functions:

- `encode` and `decode` convert a message of a given version to bytes and back.
- `encode_request`, `decode_request`, `encode_response`, `decode_response` also handle headers.
  Encoding adds the frame length. Decoding expects a frame from `framing`, without its length.
- `encode_embedded` and `decode_embedded` are for messages that clients put into opaque bytes, after
  their version.

For any bytes, a decoder returns a message or raises ProtocolError. Extra bytes after a body are
ignored, as in Kafka: the frame length says where the next request begins, and a client that sends a
little more than its version has must not lose its connection.

Decoded `records` are slices of the frame, without a copy, and keep it in memory. All other fields
are copies. An encoded response is a list of buffers; large records are not copied into it.
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
"""The most array elements of a request. So none costs more than about 20 MiB or 0.3 s."""
RESPONSE_ELEMENTS_MAX: Final = 4_000_000
"""The same for responses. It is larger, since a client trusts the brokers that it connects to."""

_API_VERSIONS: Final = ApiKey.API_VERSIONS.value
"""The header of this response never has tagged fields. A broker that does not support the requested
version answers in version 0, so the client could not know whether to expect them."""
_REQUEST_HEADER: Final = struct.Struct(">hhih")
_REQUEST_FRAME: Final = struct.Struct(">ihhih")
_RESPONSE_FRAME: Final = struct.Struct(">ii")
_INT32: Final = struct.Struct(">i")
_INT16: Final = struct.Struct(">h")
_UNSUPPORTED_VERSION: Final = _INT16.pack(ErrorCode.UNSUPPORTED_VERSION)
_CORRELATION_ID_BYTES: Final = 4
_ERROR_CODE: Final = slice(4, 6)
"""Where an ApiVersions response in version 0 has its error code: after the correlation id."""
_MALFORMED: Final = (IndexError, UnicodeDecodeError, struct.error)
_UNENCODABLE: Final = (AttributeError, TypeError, UnicodeEncodeError, ValueError, struct.error)


class RequestHeader(NamedTuple):
    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None


class UnsupportedRequest(ProtocolError):
    """The header is valid, but the API or version is not served, so the body cannot be decoded.

    An ApiVersions request is still answered, in version 0 with UNSUPPORTED_VERSION, so that the
    client can retry with a lower version.
    """

    def __init__(self, header: RequestHeader) -> None:
        super().__init__(
            f"API key {header.api_key} version {header.api_version} is not supported; send "
            "ApiVersions to list the supported versions"
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
    """Does the same as `encode`, but returns several buffers and does not copy large records."""
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
    """Decodes the message at `position`. Also returns the position after it."""
    codec = _codec(message_class, version)
    message, end = _decode_from(codec, buffer, version, position, elements_max)
    assert isinstance(message, message_class)
    return message, end


def decode_header(frame: memoryview) -> RequestHeader:
    """Decodes only the header, which is possible for any API and version."""
    return _read_header(frame)[0]


def decode_request(
    frame: memoryview,
    served: Mapping[int, Versions] | None = None,
    *,
    elements_max: int = REQUEST_ELEMENTS_MAX,
) -> tuple[RequestHeader, Request]:
    """Returns the header and the message of a request.

    Raises UnsupportedRequest for an API or version that is not in `served`, or without `served`,
    not in our schemas.
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
    # The codec of a request class makes requests.
    return header, message  # type: ignore[return-value]


def encode_request(
    message: Request, version: int, correlation_id: int, client_id: str | None
) -> list[Buffer]:
    """Returns a whole frame that begins with its length."""
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
    """Returns a whole frame that begins with its length."""
    codec = _codec(type(message), version)
    start = bytearray(_RESPONSE_FRAME.pack(0, correlation_id))
    if codec.flexible and message.API_KEY != _API_VERSIONS:
        start.append(0)
    return _framed(_encode_onto(codec, message, version, start))


def response_correlation_id(frame: memoryview) -> int:
    """Returns the correlation id, which a client needs to know how to decode the response."""
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
    """Returns the correlation id and the message of a response.

    A broker that does not support the requested version of ApiVersions answers in version 0.
    """
    correlation_id = response_correlation_id(frame)
    position = _CORRELATION_ID_BYTES
    if message_class.API_KEY == _API_VERSIONS and frame[_ERROR_CODE] == _UNSUPPORTED_VERSION:
        version = 0
    codec = _codec(message_class, version)
    if codec.flexible and message_class.API_KEY != _API_VERSIONS:
        position, elements_max = _skip_header_tags(frame, position, elements_max)
    message, _ = _decode_from(codec, frame, version, position, elements_max)
    # The codec of a response class makes responses.
    return correlation_id, message  # type: ignore[return-value]


def encode_embedded(message: Message, version: int) -> bytes:
    """Returns the version and the message as bytes, as for subscriptions in JoinGroup requests."""
    return _INT16.pack(version) + encode(message, version)


def decode_embedded(message_class: type[M], buffer: Buffer) -> tuple[int, M]:
    """Returns the version that was written, and the message.

    A version that is newer than ours is read as our newest, since new fields are added only at the
    end of such messages.
    """
    if len(buffer) < 2:
        raise ProtocolError(
            f"{message_class.__name__}: {len(buffer)} bytes are too few for a version"
        )
    version: int = _INT16.unpack_from(buffer)[0]
    known = min(version, _versions(message_class).last)
    message, _ = decode_at(
        message_class, bytes(buffer), known, 2, elements_max=REQUEST_ELEMENTS_MAX
    )
    return version, message


def request_class(api_key: int) -> type[Request] | None:
    """Returns the class of an API's requests; None if we have no schema for the API."""
    try:
        name = ApiKey(api_key).api_name
    except ValueError:
        return None
    found: type[Request] = getattr(messages, f"{name}Request")
    return found


def response_class(api_key: ApiKey) -> type[Response]:
    """Returns the class of an API's responses."""
    found: type[Response] = getattr(messages, f"{api_key.api_name}Response")
    return found


def prepare(api_key: ApiKey) -> None:
    """Compiles the codecs of an API's newest version. Others are compiled on first use."""
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
            _where(codec, version, f"the message is cut off: it needs more than its {size} bytes")
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
        raise ProtocolError("the header extends beyond the end of the frame") from error


def _framed(parts: list[Buffer]) -> list[Buffer]:
    start = parts[0]
    assert isinstance(start, bytearray)
    _INT32.pack_into(start, 0, sum(map(len, parts)) - 4)
    return parts
