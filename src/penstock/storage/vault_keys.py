"""A key provider: the transit secrets engine of HashiCorp Vault (and of OpenBao, its fork).

Vault holds the topic keys and never gives them out. It encrypts and decrypts data keys:

    POST URL/v1/MOUNT/encrypt/KEY-NAME   {"plaintext": BASE64}     -> {"ciphertext": "vault:v1:..."}
    POST URL/v1/MOUNT/decrypt/KEY-NAME   {"ciphertext": "vault:v1:..."}  -> {"plaintext": BASE64}

Vault rotates and deletes keys itself (`vault write -f transit/keys/NAME/rotate`). The broker's
token needs the right to update these two paths, and nothing else. It is read for each call, since
an agent may renew it.
"""

from __future__ import annotations

import base64
import json
import os
import ssl
from ipaddress import ip_address
from typing import IO, Any, Final
from urllib.error import HTTPError, URLError
from urllib.parse import quote, urlsplit
from urllib.request import HTTPRedirectHandler, HTTPSHandler, ProxyHandler, Request, build_opener

from penstock.storage.data_keys import KeyDropped, KeyUnavailable

TIMEOUT_S: Final = 10.0
TOKEN_VARIABLE: Final = "VAULT_TOKEN"  # noqa: S105 - the name of a variable
_ANSWER_MAX: Final = 1 << 20


class _NoRedirects(HTTPRedirectHandler):
    """Refuses redirects: the token is for one address."""

    def redirect_request(
        self, req: Request, fp: IO[bytes], code: int, msg: str, headers: Any, newurl: str
    ) -> None:
        return None


class VaultKeys:
    """The key provider of `encryption.key.provider=vault:URL/MOUNT`."""

    is_slow = True

    def __init__(self, address: str, *, token_file: str = "", ca_file: str = "") -> None:
        parts = urlsplit(address)
        if parts.scheme not in ("https", "http") or not parts.hostname:
            raise ValueError(f"{address!r}: write vault:https://HOST:8200/transit")
        if parts.username or parts.query or parts.fragment:
            raise ValueError("the address of Vault may have a host, a port and a path only")
        if parts.scheme == "http" and not _is_local(parts.hostname):
            raise ValueError(f"{address!r} would send data keys in plain text: use https")
        mount = parts.path.strip("/") or "transit"
        self._base = f"{parts.scheme}://{parts.netloc}/v1/{quote(mount)}"
        self._token_file = token_file
        context = ssl.create_default_context(cafile=ca_file or None)
        self._opener = build_opener(ProxyHandler({}), HTTPSHandler(context=context), _NoRedirects())

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._base})"

    def wrap(self, key_name: str, data_key: bytes) -> bytes:
        plaintext = base64.b64encode(data_key).decode()
        answer = self._call("encrypt", key_name, {"plaintext": plaintext})
        return _text(answer, "ciphertext").encode()

    def unwrap(self, key_name: str, token: bytes) -> bytes:
        answer = self._call("decrypt", key_name, {"ciphertext": token.decode(errors="replace")})
        try:
            return base64.b64decode(_text(answer, "plaintext"), validate=True)
        except ValueError:
            raise KeyUnavailable("Vault returned a data key that is not base64") from None

    def _call(self, verb: str, key_name: str, body: dict[str, str]) -> dict[str, Any]:
        url = f"{self._base}/{verb}/{quote(key_name, safe='')}"
        request = Request(  # noqa: S310 - the scheme was checked
            url,
            json.dumps(body).encode(),
            {"X-Vault-Token": self._token(), "Content-Type": "application/json"},
            method="POST",
        )
        try:
            with self._opener.open(request, timeout=TIMEOUT_S) as response:
                return _decoded(response.read(_ANSWER_MAX))
        except HTTPError as error:
            with error:
                raise self._refusal(url, key_name, error.code, error.read(_ANSWER_MAX)) from None
        except (URLError, OSError, ValueError) as error:
            reason = getattr(error, "reason", error)
            raise KeyUnavailable(f"Vault cannot be reached at {self._base}: {reason}") from None

    def _refusal(self, url: str, key_name: str, code: int, answer: bytes) -> KeyUnavailable:
        try:
            told = "; ".join(str(each) for each in _decoded(answer).get("errors", ()))[:200]
        except KeyUnavailable:
            told = ""
        because = f": {told}" if told else ""
        if code == 400 and "encryption key not found" in told:
            return KeyDropped(f"the key {key_name!r} does not exist in Vault{because}")
        if code == 403:
            return KeyUnavailable(f"Vault refused the broker's token for {url}{because}")
        if code == 503:
            return KeyUnavailable(f"Vault is sealed or not ready{because}")
        return KeyUnavailable(f"Vault answered {url} with status {code}{because}")

    def _token(self) -> str:
        if not self._token_file:
            token = os.environ.get(TOKEN_VARIABLE, "")
        else:
            try:
                with open(self._token_file, encoding="ascii") as file:
                    token = file.read(4096).strip()
            except (OSError, ValueError) as error:
                reason = getattr(error, "strerror", None) or "it is not text"
                raise KeyUnavailable(
                    f"Vault's token file {self._token_file} cannot be read: {reason}"
                ) from None
        if not token or not token.isascii() or not token.isprintable():
            raise KeyUnavailable(
                f"there is no token for Vault: set encryption.vault.token.file or {TOKEN_VARIABLE}"
            )
        return token


def _is_local(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _decoded(answer: bytes) -> dict[str, Any]:
    try:
        value = json.loads(answer)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise KeyUnavailable("Vault's answer is not a JSON object: check its address")
    return value


def _text(answer: dict[str, Any], name: str) -> str:
    data = answer.get("data")
    value = data.get(name) if isinstance(data, dict) else None
    if not isinstance(value, str):
        raise KeyUnavailable(f"Vault's answer has no {name}: check the mount in its address")
    return value
