"""The session of a connection whose client must authenticate with SASL.

`security.sasl_session` decides, and this session carries out what it decides: it answers, waits and
closes. Once the client is authenticated, a `BrokerSession` with the client's identity takes over.
If the authentication expires (KIP-368), this session stays in between and checks each request.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from struct import Struct
from typing import Final

from penstock.broker.audit.trail import AuditTrail
from penstock.broker.dispatch import Dispatcher
from penstock.broker.identity import ANONYMOUS, Identity
from penstock.broker.listeners.login_work import Fetch, LoginsWaiting, LoginWork, WaitingLogin
from penstock.broker.listeners.mechanisms import OAUTHBEARER
from penstock.net.session import Answer, Part, Peer, Session
from penstock.net.throttled_log import ThrottledLog
from penstock.ports import Clock
from penstock.security.acls import user_principal
from penstock.security.audit import LoginFailure, Origin, login, login_denied
from penstock.security.exchange import PasswordHash, Wait
from penstock.security.sasl_session import (
    Allow,
    Authenticated,
    Close,
    DelayThenClose,
    Effects,
    HandshakeReply,
    OfferedMechanism,
    Refuse,
    Reply,
    SaslSession,
    SaslSettings,
    TokenReply,
)
from penstock.wire.api import ApiKey
from penstock.wire.codec import (
    RequestHeader,
    UnsupportedRequest,
    decode_request,
    encode_response,
)
from penstock.wire.errors import ErrorCode, KafkaError, ProtocolError
from penstock.wire.messages import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from penstock.wire.messages.base import Request

_log = logging.getLogger(__name__)

_HEADER: Final = Struct(">hhi")
_SASL_KEYS: Final = frozenset({int(ApiKey.SASL_HANDSHAKE), int(ApiKey.SASL_AUTHENTICATE)})
_ELEMENTS_MAX: Final = 256
"""The most array elements and tagged fields of a request before authentication. The requests of a
login have none. A frame of them that is as large as allowed would take half a second to decode."""
_TIMER_S: Final = 0.001
"""The shortest timer, so that one that fires early is not set again and again in a moment."""

Parts = Sequence[Part]
_Later = asyncio.Future[Parts | None]


@dataclass(slots=True)
class LoginService:
    """What the logins of one listener share."""

    listener: str
    settings: SaslSettings
    mechanisms: Sequence[OfferedMechanism]
    clock: Clock
    dispatcher: Dispatcher
    new_session: Callable[[Peer, Identity], Session]
    """Makes the session that serves requests."""
    work: LoginWork
    audit: AuditTrail
    fetch_keys: Fetch | None = None
    """None if the listener does not accept tokens."""
    token_is_valid: Callable[[str], bool] = lambda token_id: False
    """Returns whether a delegation token exists and has not expired."""
    failures: int = 0
    """How many logins have failed."""
    successes: int = 0
    log: ThrottledLog = field(default_factory=lambda: ThrottledLog(_log))


class SaslLogin:
    """Authenticates the client of one connection."""

    def __init__(self, service: LoginService, peer: Peer) -> None:
        self._service = service
        self._peer = peer
        self._machine = SaslSession(service.mechanisms, service.settings, self._now_ms())
        self._inner: Session | None = None
        """Serves requests; None before the client is authenticated."""
        self._expires = False
        self._token_id: str | None = None
        """The delegation token of the session. Such a session always expires."""
        self._timer: asyncio.TimerHandle | None = None
        self._armed_ms: int | None = None
        self._requests_bytes_max = peer.frame_bytes_max
        self._header: RequestHeader | None = None
        """The header of the request that is being answered; None for a token without a header."""
        self._request: Request | None = None
        """The request to be refused. Never a token, which would then stay in memory."""
        self._waiting: _Later | None = None
        """The answer that waits for slow work."""
        self._login: WaitingLogin | None = None
        """What waits for the hash of its password."""
        self._adjust()

    # -- the `Session` interface

    def may_overlap(self, frame: memoryview) -> bool:
        inner = self._inner
        return inner is not None and self._machine.is_authenticated and inner.may_overlap(frame)

    def on_frame(self, frame: memoryview, borrowed: bool = False) -> Answer:
        inner = self._inner
        if inner is not None and not self._expires:
            # The frame had arrived before the other session took over.
            return inner.on_frame(frame, borrowed)
        self._header = self._request = None
        if self._machine.expects_raw_token:
            return self._on_token(bytes(frame))
        if len(frame) < _HEADER.size:
            raise ProtocolError(f"a request of {len(frame)} bytes has no header")
        api_key, version, _ = _HEADER.unpack_from(frame)
        if api_key in _SASL_KEYS:
            return self._on_sasl(frame)
        if self._token_id is not None and not self._service.token_is_valid(self._token_id):
            return self._carry_out(self._machine.on_token_removed())
        versions = self._service.dispatcher.served.get(api_key)
        is_supported = versions is not None and versions.cover(version)
        effects = self._machine.on_other_request(api_key, self._now_ms(), is_supported)
        if effects == (Allow(),):
            self._adjust()
            if inner is not None:
                return inner.on_frame(frame, borrowed)
            with suppress(UnsupportedRequest):  # the session answers it, without decoding it
                self._decoded(frame)
            return self._before_login().on_frame(frame, borrowed)
        if any(isinstance(each, DelayThenClose) for each in effects):
            with suppress(ProtocolError):  # then the connection closes without an answer
                self._header, self._request = self._decoded(frame)
        return self._carry_out(effects)

    def on_closed(self) -> None:
        self._machine.on_disconnect()
        self._end_wait()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._inner is not None:
            self._inner.on_closed()

    # -- requests

    def _before_login(self) -> Session:
        """Returns a session that serves ApiVersions."""
        identity = Identity(ANONYMOUS, self._peer.host, self._service.listener)
        return self._service.new_session(self._peer, identity)

    def _decoded(self, frame: memoryview) -> tuple[RequestHeader, Request]:
        """Decodes a request of a client that is not authenticated."""
        served = self._service.dispatcher.served
        return decode_request(memoryview(bytes(frame)), served, elements_max=_ELEMENTS_MAX)

    def _on_sasl(self, frame: memoryview) -> Answer:
        self._header, request = self._decoded(frame)
        if isinstance(request, SaslHandshakeRequest):
            version = self._header.api_version
            return self._carry_out(
                self._machine.on_handshake(version, request.mechanism, self._now_ms())
            )
        assert isinstance(request, SaslAuthenticateRequest)
        return self._on_token(bytes(request.auth_bytes))

    def _on_token(self, token: bytes) -> Answer:
        wall_ms = self._service.clock.wall_ms()
        return self._carry_out(self._machine.on_token(token, self._now_ms(), wall_ms))

    # -- what the machine decides

    def _carry_out(self, effects: Effects, later: _Later | None = None) -> Answer:
        """Carries out effects, and returns the answer; or resolves `later` with it."""
        for effect in effects:
            if isinstance(effect, Authenticated):
                self._on_authenticated(effect, effects)
            elif isinstance(effect, HandshakeReply | TokenReply | Refuse):
                return self._answer(self._encoded(effect), later)
            elif isinstance(effect, Wait):
                return self._wait(effect, later)
            elif isinstance(effect, DelayThenClose):
                return self._delay(effect, later)
            elif isinstance(effect, Close):
                expired = self._machine.principal is not None
                self._record_denied(LoginFailure.EXPIRED if expired else LoginFailure.PROTOCOL)
                self._adjust()
                raise ProtocolError(effect.reason)
        return self._answer(None, later)

    def _answer(self, parts: Parts | None, later: _Later | None) -> Answer:
        self._adjust()
        if later is None:
            return parts
        if not later.done():
            later.set_result(parts)
        return later

    def _on_authenticated(self, effect: Authenticated, effects: Effects) -> None:
        service, peer = self._service, self._peer
        service.successes += 1
        origin = Origin(effect.principal, peer.host, service.listener)
        now_ms = service.audit.now_ms()
        service.audit.record(
            login(origin, now_ms, effect.mechanism, effect.is_again, effect.token_id)
        )
        self._token_id = effect.token_id
        self._expires = any(
            isinstance(each, TokenReply) and each.lifetime_ms > 0 for each in effects
        )
        if self._inner is None:
            user, by_token = user_principal(effect.principal), effect.token_id is not None
            identity = Identity(user, peer.host, service.listener, by_token)
            self._inner = service.new_session(peer, identity)
        if not self._expires:
            peer.replace_session(self._inner)

    def _wait(self, effect: Wait, later: _Later | None) -> Answer:
        if later is None:
            later = asyncio.get_running_loop().create_future()
        waiting = self._waiting = later

        def done(result: bytes | None) -> None:
            if waiting.done():
                return
            self._waiting = self._login = None
            now_ms, wall_ms = self._now_ms(), self._service.clock.wall_ms()
            try:
                self._carry_out(self._machine.on_work_done(result, now_ms, wall_ms), waiting)
            except Exception as error:  # noqa: BLE001 - the connection logs it and closes
                if not waiting.done():
                    waiting.set_exception(error)

        def refused(error: LoginsWaiting) -> None:
            self._waiting = self._login = None
            if not waiting.done():
                waiting.set_exception(ProtocolError(str(error)))

        work = effect.work
        try:
            if isinstance(work, PasswordHash):
                queue = self._service.work
                self._login = queue.hash_password(self._peer.host, work, done, refused)
            elif self._service.fetch_keys is not None:
                self._service.fetch_keys(work, done)
            else:
                done(None)
        except LoginsWaiting as error:
            # The connection closes without an answer, so that the client tries again.
            self._waiting = None
            raise ProtocolError(str(error)) from error
        self._adjust()
        return waiting

    def _end_wait(self) -> None:
        """Ends a wait without an answer. Work that has begun ends later, without an effect."""
        if self._login is not None:
            self._service.work.forget(self._login)
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)
        self._waiting = self._login = None

    def _delay(self, effect: DelayThenClose, later: _Later | None) -> Answer:
        """Answers a failure late. The connection reads nothing more until then, and closes."""
        service, peer = self._service, self._peer
        service.failures += 1
        self._record_denied(_why(effect, self._machine), effect.claimed, effect.token_id)
        who = "" if effect.claimed is None else f" as {effect.claimed!r}"
        if effect.token_id is not None:
            who = f" with the delegation token {effect.token_id!r}"
        service.log.warn(
            f"a client at {peer.host} could not authenticate{who} on the listener "
            f"{service.listener}: {effect.reason}",
            service.clock.monotonic(),
        )
        loop = asyncio.get_running_loop()
        waiting: _Later = later if later is not None else loop.create_future()
        parts = None if effect.reply is None else self._encoded(effect.reply)

        def finish() -> None:
            if not waiting.done():
                peer.close()
                waiting.set_result(parts)

        self._adjust()  # ends the timer of the deadline
        delay_s = effect.due_ms / 1000 - service.clock.monotonic()
        self._timer = loop.call_later(max(0.0, delay_s), finish)
        return waiting

    def _encoded(self, reply: Reply) -> Parts | None:
        header = self._header
        if isinstance(reply, TokenReply) and reply.is_raw:
            return [len(reply.token).to_bytes(4, "big") + reply.token]
        if header is None:
            return None
        if isinstance(reply, HandshakeReply):
            answer = SaslHandshakeResponse(reply.code, list(reply.mechanisms))
            return encode_response(answer, header.api_version, header.correlation_id)
        if isinstance(reply, TokenReply):
            token = SaslAuthenticateResponse(reply.code, reply.text, reply.token, reply.lifetime_ms)
            if header.api_version == 0:
                token.session_lifetime_ms = 0
            return encode_response(token, header.api_version, header.correlation_id)
        if self._request is None:
            return None
        refused = self._service.dispatcher.refuse(
            self._request, header.api_version, KafkaError(reply.code)
        )
        return encode_response(refused, header.api_version, header.correlation_id)

    def _record_denied(
        self, why: LoginFailure, claimed: str | None = None, token_id: str | None = None
    ) -> None:
        """Records a failed login. A name in a token that was not accepted means nothing."""
        service, machine = self._service, self._machine
        mechanism = machine.mechanism or "none"
        user = machine.principal or (None if mechanism == OAUTHBEARER else claimed)
        origin = Origin(user, self._peer.host, service.listener)
        again = machine.principal is not None
        now_ms = service.audit.now_ms()
        service.audit.record(login_denied(origin, now_ms, mechanism, why, again, token_id))

    # -- limits and deadlines

    def _adjust(self) -> None:
        """Applies the limits of the machine's state: the largest frame, and the deadline."""
        limit = self._machine.frame_bytes_max
        self._peer.frame_bytes_max = self._requests_bytes_max if limit is None else limit
        deadline_ms = self._machine.deadline_ms
        if deadline_ms == self._armed_ms:
            return
        self._armed_ms = deadline_ms
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if deadline_ms is not None:
            delay_s = max(_TIMER_S, deadline_ms / 1000 - self._service.clock.monotonic())
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(delay_s, self._on_deadline)

    def _on_deadline(self) -> None:
        # A timer may fire a little early. Then it is set again.
        self._timer = self._armed_ms = None
        for effect in self._machine.on_deadline(self._now_ms()):
            if isinstance(effect, Close):
                self._service.failures += 1
                self._record_denied(LoginFailure.TIMEOUT)
                now = self._service.clock.monotonic()
                self._service.log.warn(
                    f"closing the connection from {self._peer.host}: {effect.reason}", now
                )
                self._peer.close()
                self._end_wait()
        self._adjust()

    def _now_ms(self) -> int:
        return int(self._service.clock.monotonic() * 1000)


def _why(effect: DelayThenClose, machine: SaslSession) -> LoginFailure:
    reply = effect.reply
    if isinstance(reply, HandshakeReply):
        is_unknown = reply.code == ErrorCode.UNSUPPORTED_SASL_MECHANISM
        return LoginFailure.MECHANISM if is_unknown else LoginFailure.PROTOCOL
    if isinstance(reply, Refuse):
        return LoginFailure.PROTOCOL
    if machine.principal is not None and effect.claimed not in (None, machine.principal):
        return LoginFailure.PRINCIPAL
    if effect.token_id is not None:
        return LoginFailure.DELEGATION_TOKEN
    is_token = machine.mechanism == OAUTHBEARER
    return LoginFailure.BEARER if is_token else LoginFailure.CREDENTIALS
