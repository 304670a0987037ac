"""A client's connection to one listener of a broker in a harness: frames in, frames out."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import count
from typing import TypeVar

from broker.harness import BrokerHarness
from penstock.net.fair_turns import FairTurns, Turn
from penstock.net.outbox import in_memory
from penstock.net.session import Part, Session
from penstock.security.plain import client_message
from penstock.security.scram import ScramClient, nonce_text
from penstock.security.scram_credentials import ScramMechanism, from_salted_password, password_hash
from penstock.wire.codec import decode_response, encode_request
from penstock.wire.errors import ProtocolError
from penstock.wire.messages import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from penstock.wire.messages.base import Request, Response

R = TypeVar("R", bound=Response)

SASL_SETTINGS = {
    "listeners": "PLAINTEXT://127.0.0.1:9092,LOGIN://127.0.0.1:9192",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,LOGIN:SASL_PLAINTEXT",
    "listener.name.login.sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
    "connection.failed.authentication.delay.ms": "30",
}
"""A broker with one listener in plain text, and one with SASL."""


class Connection:
    """Is the `Peer` of its session, as a real connection is."""

    port = 40_000
    is_replica = False

    def __init__(self, harness: BrokerHarness, listener: str = "LOGIN", broker: int = 0) -> None:
        self.host = "192.0.2.1"
        self.frame_bytes_max = 100 << 20
        self.is_closed = False
        self.turn = Turn(FairTurns(lambda: 0.0), lambda: None)
        self.mutes: list[float] = []
        self._ids = count(1)
        opened = harness.brokers[broker].server.listeners[listener]
        self.session: Session = opened.new_session(self)

    def get_extra_info(self, name: str) -> None:
        return None

    def replace_session(self, session: Session) -> None:
        self.session = session

    def mute(self, seconds: float) -> None:
        self.mutes.append(seconds)

    def close(self) -> None:
        self.is_closed = True

    async def exchange(self, frame: bytes) -> bytes | None:
        """Sends one frame. Returns the response, without its length; None if there is none."""
        try:
            answer = self.session.on_frame(memoryview(bytearray(frame)))
        except ProtocolError:  # A real connection closes.
            self.close()
            self.session.on_closed()
            raise
        parts: Sequence[Part] | None
        parts = await answer if isinstance(answer, asyncio.Future) else answer
        return None if parts is None else b"".join(in_memory(parts))[4:]

    async def ask(self, request: Request, version: int, response: type[R]) -> R:
        correlation_id = next(self._ids)
        frame = b"".join(encode_request(request, version, correlation_id, "test"))
        data = await self.exchange(frame[4:])
        assert data is not None
        answered, message = decode_response(response, memoryview(data), version)
        assert answered == correlation_id
        return message

    async def shake(self, mechanism: str, version: int = 1) -> SaslHandshakeResponse:
        return await self.ask(SaslHandshakeRequest(mechanism), version, SaslHandshakeResponse)

    async def token(self, token: bytes, version: int = 2) -> SaslAuthenticateResponse:
        return await self.ask(SaslAuthenticateRequest(token), version, SaslAuthenticateResponse)

    async def plain(self, user: str, password: str) -> SaslAuthenticateResponse:
        await self.shake("PLAIN")
        return await self.token(client_message(user, password))

    async def scram(
        self,
        user: str,
        password: str,
        mechanism: ScramMechanism = ScramMechanism.SHA_256,
        *,
        tokenauth: bool = False,
    ) -> SaslAuthenticateResponse:
        """Logs in, or returns the first answer with an error."""
        await self.shake(mechanism.sasl_name)
        nonce = nonce_text(bytes(24))
        client = ScramClient(mechanism, user, password, nonce, tokenauth=tokenauth)
        first = await self.token(client.first())
        if first.error_code:
            return first
        salted = client.on_server_first(bytes(first.auth_bytes)).run()
        final = await self.token(client.final(salted))
        if not final.error_code:
            client.on_server_final(bytes(final.auth_bytes))
        return final


async def add_user(
    harness: BrokerHarness,
    user: str,
    password: str,
    mechanism: ScramMechanism = ScramMechanism.SHA_256,
) -> None:
    salt = b"a salt of a user"
    salted = password_hash(mechanism, password, salt, 4096).run()
    assert from_salted_password(mechanism, salted, salt, 4096).accepts(salted)
    request = AlterUserScramCredentialsRequest(
        [], [AlterUserScramCredentialsRequest.Upsertion(user, mechanism, 4096, salt, salted)]
    )
    answer = await harness.ask(request, 0, AlterUserScramCredentialsResponse)
    assert [each.error_code for each in answer.results] == [0], answer.results[0].error_message
