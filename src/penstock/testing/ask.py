"""Sends one request to a broker over a blocking socket, without an event loop.

Fixtures must work with and without a running event loop. They send only a few requests.
"""

from __future__ import annotations

import socket
from typing import TypeVar

from penstock.wire.codec import decode_response, encode_request
from penstock.wire.framing import FrameReader
from penstock.wire.messages.base import Request, Response

R = TypeVar("R", bound=Response)

_FRAME_BYTES_MAX = 16 << 20
_READ_BYTES = 1 << 16


def ask(
    bootstrap: str, request: Request, response_class: type[R], version: int, timeout_s: float
) -> R:
    """Returns the answer. Raises TimeoutError if none arrives, ConnectionError if it is lost."""
    host, _, port = bootstrap.rpartition(":")
    with socket.create_connection((host, int(port)), timeout_s) as connection:
        for part in encode_request(request, version, 0, "penstock-testing"):
            connection.sendall(part)
        frames = FrameReader(_FRAME_BYTES_MAX)
        while data := connection.recv(_READ_BYTES):
            for frame in frames.feed(data):
                _, answer = decode_response(response_class, frame, version)
                return answer
    raise ConnectionError(f"the broker at {bootstrap} closed the connection without an answer")
