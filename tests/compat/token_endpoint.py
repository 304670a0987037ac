"""An issuer of tokens for tests: clients get theirs over HTTP, as from an identity provider.

It implements the grant `client_credentials` (RFC 6749, section 4.4). The test decides which token a
client gets.
"""

from __future__ import annotations

import base64
import json
import secrets
import threading
from collections import Counter
from collections.abc import Callable, Iterator
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
        self._clients: dict[str, tuple[str, Callable[[], str], float]] = {}
        """Client id -> its secret, what makes its tokens, and how long they last."""
        self.asked: Counter[str] = Counter()
        """How often each client has got a token."""

    def register(self, token: str) -> ClientCredentials:
        """Returns the credentials with which a client gets this token."""
        return self.register_source(lambda: token, LIFE_S)

    def register_source(self, make: Callable[[], str], life_s: float) -> ClientCredentials:
        """Returns the credentials with which a client gets a new token each time."""
        made = ClientCredentials(self.url, secrets.token_hex(8), secrets.token_hex(16))
        self._clients[made.client_id] = made.secret, make, life_s
        return made

    def answer(self, path: str, authorization: str, form: str) -> tuple[int, dict[str, object]]:
        """Returns the status and the body of the answer to a POST."""
        if path != PATH or parse_qs(form).get("grant_type") != ["client_credentials"]:
            return 400, {"error": "invalid_request"}
        client_id, secret = _basic(authorization)
        known, make, life_s = self._clients.get(client_id, ("", str, 0.0))
        if not known or not compare_digest(known, secret):
            return 401, {"error": "invalid_client"}
        self.asked[client_id] += 1
        return 200, {"access_token": make(), "token_type": "Bearer", "expires_in": life_s}


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
