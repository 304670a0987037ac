"""A stand-in for an OpenID provider, for tests: authorization codes with PKCE, tokens."""

from __future__ import annotations

import base64
import hashlib
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

from security.signed_tokens import jwk, make

CLIENT_ID = "penstock-console"
KEYS = {"keys": [jwk("RS256")]}


class Provider:
    """Signs everybody in as `user`."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self.user = "dana"
        self.expires_in_s = 3600
        self.is_down = False
        self.grants: list[str] = []
        """The grant types of the tokens that were given."""
        self._codes: dict[str, dict[str, str]] = {}

    def answer(self, method: str, path: str, form: dict[str, str]) -> tuple[int, Any]:
        """Returns a status with JSON, or 302 with an address."""
        if self.is_down:
            return 503, {}
        match method, path:
            case "GET", "/.well-known/openid-configuration":
                return 200, {
                    "issuer": self.url,
                    "authorization_endpoint": f"{self.url}/authorize",
                    "token_endpoint": f"{self.url}/token",
                }
            case "GET", "/authorize":
                code = f"code-{len(self._codes)}"
                self._codes[code] = form
                back = urlencode({"code": code, "state": form["state"]})
                return 302, f"{form['redirect_uri']}?{back}"
            case "POST", "/token":
                return self._token(form)
        return 404, {}

    def _token(self, form: dict[str, str]) -> tuple[int, Any]:
        kind = form.get("grant_type", "")
        if kind == "authorization_code":
            asked = self._codes.pop(form.get("code", ""), None)
            digest = hashlib.sha256(form.get("code_verifier", "").encode()).digest()
            challenge = base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
            if (
                asked is None
                or asked["code_challenge"] != challenge
                or asked["redirect_uri"] != form.get("redirect_uri")
                or form.get("client_id") != CLIENT_ID
            ):
                return 400, {"error": "invalid_grant"}
        elif (kind, form.get("refresh_token")) != ("refresh_token", "refresh-me"):
            return 400, {"error": "invalid_grant"}
        self.grants.append(kind)
        now_s = int(time.time())
        claims = {
            "iss": self.url,
            "aud": "penstock",
            "sub": self.user,
            "iat": now_s - 60,
            "exp": now_s + self.expires_in_s,
        }
        return 200, {
            "access_token": make(claims).decode(),
            "refresh_token": "refresh-me",
            "expires_in": self.expires_in_s,
            "token_type": "Bearer",
        }


@contextmanager
def running_provider() -> Iterator[Provider]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            parts = urlsplit(self.path)
            self._reply(*provider.answer("GET", parts.path, _fields(parts.query)))

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", 0))).decode()
            self._reply(*provider.answer("POST", self.path, _fields(body)))

        def _reply(self, status: int, content: Any) -> None:
            data = b"" if status == 302 else json.dumps(content).encode()
            self.send_response(status)
            if status == 302:
                self.send_header("location", content)
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    provider = Provider(server.server_address[1])
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield provider
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _fields(text: str) -> dict[str, str]:
    return {name: values[0] for name, values in parse_qs(text).items()}
