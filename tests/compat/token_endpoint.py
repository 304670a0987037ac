"""An issuer of tokens for tests: clients get theirs over HTTP, as from an identity provider.

It implements the grant `client_credentials` (RFC 6749, section 4.4). The test decides which token a
client gets.
"""

from __future__ import annotations

import base64
import json
import secrets
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from hmac import compare_digest
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs

PATH = "/token"
LIFE_S = 3600


@dataclass(frozen=True)
class ClientCredentials:
    """With these a client asks for its token."""

    url: str
    client_id: str
    secret: str = field(repr=False)


class TokenEndpoint:
    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}{PATH}"
        self._tokens: dict[str, tuple[str, str]] = {}
        """Client id -> its secret, and its token."""
        self.asked = 0

    def register(self, token: str) -> ClientCredentials:
        """Returns the credentials with which a client gets this token."""
        made = ClientCredentials(self.url, secrets.token_hex(8), secrets.token_hex(16))
        self._tokens[made.client_id] = made.secret, token
        return made

    def answer(self, path: str, authorization: str, form: str) -> tuple[int, dict[str, object]]:
        """Returns the status and the body of the answer to a POST."""
        self.asked += 1
        if path != PATH or parse_qs(form).get("grant_type") != ["client_credentials"]:
            return 400, {"error": "invalid_request"}
        client_id, secret = _basic(authorization)
        known, token = self._tokens.get(client_id, ("", ""))
        if not known or not compare_digest(known, secret):
            return 401, {"error": "invalid_client"}
        return 200, {"access_token": token, "token_type": "Bearer", "expires_in": LIFE_S}


def _basic(authorization: str) -> tuple[str, str]:
    kind, _, text = authorization.partition(" ")
    if kind != "Basic":
        return "", ""
    name, _, secret = base64.b64decode(text).decode().partition(":")
    return name, secret


@contextmanager
def serve_tokens() -> Iterator[TokenEndpoint]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            form = self.rfile.read(int(self.headers["Content-Length"])).decode()
            given = self.headers.get("Authorization", "")
            status, body = endpoint.answer(self.path, given, form)
            data = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            """Says nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        endpoint = TokenEndpoint(server.server_port)
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield endpoint
        finally:
            server.shutdown()
            thread.join()
