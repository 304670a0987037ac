"""SASL for the fake broker: the machines of the real one, in a shell as small as can be."""

from __future__ import annotations

import asyncio
import struct
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from penstock.security.decoys import Decoys
from penstock.security.exchange import Exchange, PasswordHash, Wait
from penstock.security.oauthbearer import OAuthBearerExchange
from penstock.security.plain import PlainScramServer
from penstock.security.sasl_session import (
    Allow,
    Close,
    DelayThenClose,
    HandshakeReply,
    OfferedMechanism,
    SaslSession,
    SaslSettings,
    TokenReply,
)
from penstock.security.scram import ScramServer, nonce_text
from penstock.security.scram_credentials import (
    ScramCredential,
    ScramMechanism,
    from_salted_password,
    password_hash,
)
from penstock.security.token_verdict import TokenAccepted, TokenRejected, TokenVerdict
from penstock.wire.api import ApiKey
from penstock.wire.codec import RequestHeader, decode_request, encode_response
from penstock.wire.messages import SaslAuthenticateResponse, SaslHandshakeResponse
from penstock.wire.schema.notation import Versions

VERSIONS: Mapping[ApiKey, Versions] = {
    ApiKey.SASL_HANDSHAKE: Versions(0, 1),
    ApiKey.SASL_AUTHENTICATE: Versions(0, 2),
}
_SALT = b"0123456789abcdef"
_ITERATIONS = 4096


def credential(mechanism: ScramMechanism, password: str) -> ScramCredential:
    salted = password_hash(mechanism, password, _SALT, _ITERATIONS).run()
    return from_salted_password(mechanism, salted, _SALT, _ITERATIONS)


@dataclass
class FakeSasl:
    """The users of a fake broker. `passwords` and `tokens` may change while it runs."""

    passwords: dict[str, str] = field(default_factory=lambda: {"alice": "tea"})
    tokens: dict[str, str] = field(default_factory=dict)
    """Token -> user."""
    told_ms: int = 0
    """The lifetime of sessions, as clients are told. The broker itself accepts requests for longer,
    so that a test does not depend on how fast the machine is."""
    has_authenticate: bool = True
    """Whether the broker advertises SaslAuthenticate."""
    logins: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    closes: list[str] = field(default_factory=list)
    mechanisms: tuple[str, ...] = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")

    def versions(self) -> dict[ApiKey, Versions]:
        found = dict(VERSIONS)
        if not self.has_authenticate:
            del found[ApiKey.SASL_AUTHENTICATE]
        return found

    def gate(self) -> Gate:
        offered = [
            OfferedMechanism(name, lambda name=name: self._exchange(name), self.told_ms and 600_000)  # type: ignore[misc]
            for name in self.mechanisms
        ]
        settings = SaslSettings(failure_delay_ms=1)
        return Gate(self, SaslSession(offered, settings, _now_ms()))

    def _exchange(self, name: str) -> Exchange:
        decoys = Decoys(b"a secret of many bytes")
        if name == "OAUTHBEARER":
            return OAuthBearerExchange(self._check)
        if name == "PLAIN":
            return PlainScramServer(lambda user: self._find(user, ScramMechanism.SHA_512), decoys)
        mechanism = {each.sasl_name: each for each in ScramMechanism}[name]
        nonce = nonce_text(b"n" * 24)
        return ScramServer(mechanism, lambda user: self._find(user, mechanism), decoys, nonce)

    def _find(self, user: str, mechanism: ScramMechanism) -> ScramCredential | None:
        password = self.passwords.get(user)
        return None if password is None else credential(mechanism, password)

    def _check(self, token: bytes, now_ms: int) -> TokenVerdict:
        user = self.tokens.get(token.decode())
        if user is None:
            return TokenRejected("the token is not known")
        return TokenAccepted(user, now_ms + 3_600_000)


class Gate:
    """One connection."""

    def __init__(self, sasl: FakeSasl, session: SaslSession) -> None:
        self._sasl = sasl
        self._session = session

    async def on_frame(self, frame: memoryview, writer: asyncio.StreamWriter) -> bool | None:
        """Returns None for a request to be processed, else whether the connection stays open."""
        now, wall = _now_ms(), time.time_ns() // 1_000_000
        if self._session.expects_raw_token:
            effects = self._session.on_token(bytes(frame), now, wall)
            return await self._act(effects, None, writer)
        key, version = struct.unpack_from(">hh", frame)
        header: RequestHeader | None = None
        if key in VERSIONS:
            known = {int(each): versions for each, versions in VERSIONS.items()}
            header, request = decode_request(frame, known)
            if key == ApiKey.SASL_HANDSHAKE:
                effects = self._session.on_handshake(version, str(request.mechanism), now)  # type: ignore[attr-defined]
            else:
                effects = self._session.on_token(bytes(request.auth_bytes), now, wall)  # type: ignore[attr-defined]
        else:
            effects = self._session.on_other_request(key, now)
        return await self._act(effects, header, writer)

    async def _act(
        self, effects: Any, header: RequestHeader | None, writer: asyncio.StreamWriter
    ) -> bool | None:
        for effect in effects:
            match effect:
                case Allow():
                    return None
                case Wait(work):
                    assert isinstance(work, PasswordHash)
                    now, wall = _now_ms(), time.time_ns() // 1_000_000
                    more = self._session.on_work_done(work.run(), now, wall)
                    return await self._act(more, header, writer)
                case Close(reason):
                    self._sasl.closes.append(reason)
                    return False
                case DelayThenClose():
                    self._sasl.failures.append(effect.reason)
                    if effect.reply is not None:
                        self._reply(effect.reply, header, writer)
                        await writer.drain()
                    return False
                case HandshakeReply() | TokenReply():
                    self._reply(effect, header, writer)
                case _:
                    self._sasl.logins.append(effect.principal)
        await writer.drain()
        return True

    def _told(self, reply: TokenReply) -> int:
        return self._sasl.told_ms if reply.lifetime_ms else 0

    def _reply(
        self, reply: Any, header: RequestHeader | None, writer: asyncio.StreamWriter
    ) -> None:
        if isinstance(reply, TokenReply) and reply.is_raw:
            writer.write(struct.pack(">i", len(reply.token)) + reply.token)
            return
        assert header is not None
        response = (
            SaslHandshakeResponse(reply.code, list(reply.mechanisms))
            if isinstance(reply, HandshakeReply)
            else SaslAuthenticateResponse(reply.code, reply.text, reply.token, self._told(reply))
        )
        parts = encode_response(response, header.api_version, header.correlation_id)
        writer.write(b"".join(parts))


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000
