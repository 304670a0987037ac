"""The machine of one connection to a listener with SASL: what the client may send, and when.

Before a client is authenticated it may send ApiVersions, SaslHandshake, and then its tokens, and
nothing else. All failures look the same to a client, and are answered late. `exchange` describes
the mechanisms, which this machine runs.

The delay of a failure is counted from the arrival of the token, so that the time of the answer does
not show how long the check took. If it took longer than the delay, the answer is due at the next
multiple of the delay.

Events go in as calls, and each call returns effects to be carried out in order. The caller decodes
the requests, encodes the answers, runs the timers, and does the work of `Wait`. It processes the
frames of a connection one after the other: it stops reading during a `Wait`, and after a `Close` or
a `DelayThenClose`.

Re-authentication is KIP-368: a session that expires is renewed by the same user with the same
mechanism on the same connection. Expiry is checked when the next request arrives. Requests that the
broker has already accepted are completed and answered.

Times are `now_ms` on a clock that never jumps, and `wall_ms` where a token's expiry is compared.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Final, TypeAlias

from penstock.security.exchange import (
    Accepted,
    Challenge,
    Exchange,
    Rejected,
    Step,
    Wait,
)
from penstock.security.user_names import name_problem
from penstock.wire.api import ApiKey
from penstock.wire.errors import ErrorCode

FAILED_TEXT: Final = "authentication failed: check the user name, and the password or token"
"""What every client is told about every failure, so that no answer shows whether a user exists."""

FRAME_BYTES_MAX: Final = 64 << 10
"""The largest frame before authentication, unless `sasl.server.max.receive.size` says otherwise.
Kafka's default is 512 KiB, which lets anyone who can connect use that much memory."""

REFUSED_HANDSHAKES_MAX: Final = 1
"""How many unknown mechanisms a client may name before it is closed. franz-go tries a second."""

REFUSED_VERSIONS_MAX: Final = 2
"""How often a client may send an unsupported version of ApiVersions. Clients then use another."""

STEPS_MAX: Final = 8
"""How many tokens one authentication may take. SCRAM needs two."""

REAUTHENTICATION_INTERVAL_MS: Final = 1000
"""A client may begin to re-authenticate once in this time, as in Kafka."""


@dataclass(frozen=True, slots=True)
class OfferedMechanism:
    """A mechanism of the listener."""

    name: str
    new_exchange: Callable[[], Exchange] = field(repr=False)
    """Returns an exchange for one authentication."""

    max_reauth_ms: int = 0
    """`connections.max.reauth.ms`: how long a session may last; 0 if only its token limits it."""


@dataclass(frozen=True, slots=True)
class SaslSettings:
    """The settings of the listener."""

    failure_delay_ms: int = 100
    """`connection.failed.authentication.delay.ms`. Set it above the time that PLAIN needs."""

    deadline_ms: int = 10_000
    """How long a whole authentication may take."""

    frame_bytes_max: int = FRAME_BYTES_MAX
    """`sasl.server.max.receive.size`."""


@dataclass(frozen=True, slots=True)
class HandshakeReply:
    """Answer SaslHandshake."""

    code: ErrorCode
    mechanisms: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TokenReply:
    """Answer SaslAuthenticate; or, if `is_raw`, send the token alone as a frame."""

    code: ErrorCode = ErrorCode.NONE
    text: str | None = None
    token: bytes = field(default=b"", repr=False)
    lifetime_ms: int = 0
    """How long the session lasts; 0 if it does not end. SaslAuthenticate has it from version 1."""

    is_raw: bool = False


@dataclass(frozen=True, slots=True)
class Allow:
    """Process the request."""


@dataclass(frozen=True, slots=True)
class Refuse:
    """Answer the request with this error in the response of its own API."""

    code: ErrorCode


@dataclass(frozen=True, slots=True)
class Authenticated:
    """The connection now belongs to this user, and its requests may be processed."""

    principal: str
    """The name of the user, without `User:`."""

    mechanism: str
    is_again: bool = False
    """Whether the client has re-authenticated."""

    token_id: str | None = None
    """The delegation token with which the client has logged in; None if it has none."""


@dataclass(frozen=True, slots=True)
class Close:
    """Close the connection at once."""

    reason: str
    """For the log. The client does not get it."""


@dataclass(frozen=True, slots=True)
class DelayThenClose:
    """Stop reading, wait, send the reply if there is one, and close the connection."""

    delay_ms: int
    """How long to wait from now on."""

    due_ms: int
    """The end of the wait, on the clock of `now_ms`. Prefer it to `delay_ms` if the clock of the
    caller is finer than a millisecond: it does not depend on the time of the check at all."""

    reply: HandshakeReply | TokenReply | Refuse | None
    reason: str
    """For the audit log. The client does not get it."""

    claimed: str | None = None
    """The user that the client said it was, if known."""

    token_id: str | None = None
    """The delegation token that the client said it had."""


Reply: TypeAlias = HandshakeReply | TokenReply | Refuse
Effect: TypeAlias = Reply | Allow | Authenticated | Wait | Close | DelayThenClose
Effects: TypeAlias = tuple[Effect, ...]


class _State(Enum):
    START = auto()
    """The client may ask for ApiVersions or begin a handshake."""

    HANDSHAKE = auto()
    """The client must begin a handshake."""

    TOKENS = auto()
    """The client must send tokens; also during re-authentication."""

    WAIT = auto()
    """The exchange waits for slow work, and the client for an answer."""

    AUTHENTICATED = auto()
    CLOSED = auto()


class SaslSession:
    """The authentication of one connection, from its start to its end."""

    def __init__(
        self, mechanisms: Sequence[OfferedMechanism], settings: SaslSettings, now_ms: int
    ) -> None:
        if not mechanisms:
            raise ValueError("a listener with SASL needs a mechanism: set sasl.enabled.mechanisms")
        self._mechanisms = {mechanism.name: mechanism for mechanism in mechanisms}
        self._settings = settings
        self._state = _State.START
        self._deadline_ms: int | None = now_ms + settings.deadline_ms
        self._chosen = mechanisms[0]
        self._has_chosen = False
        self._exchange: Exchange | None = None
        self._is_raw = False
        self._steps = 0
        self._began_ms = now_ms
        """When the token arrived that is being answered."""
        self._refused_handshakes = 0
        self._refused_versions = 0
        self._principal: str | None = None
        self._has_token = False
        self._expires_ms: int | None = None
        self._last_renewal_ms: int | None = None

    @property
    def principal(self) -> str | None:
        """The user of the connection; None before authentication. It never changes."""
        return self._principal

    @property
    def mechanism(self) -> str | None:
        """The mechanism that the client has chosen; None before that."""
        return self._chosen.name if self._has_chosen else None

    @property
    def is_authenticated(self) -> bool:
        """Whether requests are processed now; False during re-authentication."""
        return self._state is _State.AUTHENTICATED

    @property
    def expects_raw_token(self) -> bool:
        """Whether the next frame is a token without a request header (SaslHandshake version 0)."""
        return self._state is _State.TOKENS and self._is_raw

    @property
    def frame_bytes_max(self) -> int | None:
        """The largest frame that the client may send now; None if SASL does not limit it."""
        return None if self.is_authenticated else self._settings.frame_bytes_max

    @property
    def deadline_ms(self) -> int | None:
        """When to call `on_deadline`; None if there is no deadline now."""
        return self._deadline_ms

    def on_handshake(self, version: int, mechanism: str, now_ms: int) -> Effects:
        """Handles SaslHandshake."""
        if self._state is _State.CLOSED:
            return ()
        if self._state is _State.AUTHENTICATED:
            return self._on_renewal(version, mechanism, now_ms)
        if self._is_late(now_ms):
            return self._close(_TOO_LATE)
        if self._state not in {_State.START, _State.HANDSHAKE}:
            reply = HandshakeReply(ErrorCode.ILLEGAL_SASL_STATE)
            return self._fail(reply, "a second SaslHandshake during authentication", now_ms)
        if version not in _HANDSHAKE_VERSIONS:
            return self._close(f"SaslHandshake version {version} is not supported")
        if (chosen := self._mechanisms.get(mechanism)) is None:
            return self._refuse_mechanism(now_ms)
        return self._begin(version, chosen)

    def on_token(self, token: bytes, now_ms: int, wall_ms: int) -> Effects:
        """Handles SaslAuthenticate, or a raw token."""
        if self._state is _State.CLOSED:
            return ()
        if self._state is _State.AUTHENTICATED:
            if self._is_expired(now_ms):
                return self._close(_EXPIRED)
            return (TokenReply(ErrorCode.ILLEGAL_SASL_STATE, _NO_RENEWAL),)
        if self._is_late(now_ms):
            return self._close(_TOO_LATE)
        if self._state is not _State.TOKENS or self._exchange is None:
            return self._close(
                "the client sent a token before SaslHandshake, or before the last token was "
                "answered"
            )
        self._steps += 1
        self._began_ms = now_ms
        if len(token) > self._settings.frame_bytes_max or self._steps > STEPS_MAX:
            rejected = Rejected("the client sent too many tokens, or one that is too long")
            return self._on_step(rejected, now_ms, wall_ms)
        return self._on_step(self._exchange.step(token, wall_ms), now_ms, wall_ms)

    def on_work_done(self, result: bytes | None, now_ms: int, wall_ms: int) -> Effects:
        """Handles the result of the work of `Wait`; None if the work failed."""
        if self._state is not _State.WAIT or self._exchange is None:
            return ()
        if self._is_late(now_ms):
            return self._close(_TOO_LATE)
        self._state = _State.TOKENS
        return self._on_step(self._exchange.resume(result, wall_ms), now_ms, wall_ms)

    def on_other_request(
        self, api_key: int, now_ms: int, is_version_supported: bool = True
    ) -> Effects:
        """Handles a request that is neither SaslHandshake nor SaslAuthenticate.

        A client that sends a newer ApiVersions than the broker supports gets an error and may send
        it again.
        """
        if self._state is _State.CLOSED:
            return ()
        if self._state is _State.AUTHENTICATED:
            return self._close(_EXPIRED) if self._is_expired(now_ms) else (Allow(),)
        if self._is_late(now_ms):
            return self._close(_TOO_LATE)
        if self._state in {_State.TOKENS, _State.WAIT}:
            refusal = Refuse(ErrorCode.ILLEGAL_SASL_STATE)
            return self._fail(refusal, f"a request of API {api_key} during authentication", now_ms)
        if api_key != ApiKey.API_VERSIONS or self._state is not _State.START:
            return self._close(f"a request of API {api_key} before authentication")
        if is_version_supported:
            self._state = _State.HANDSHAKE
            return (Allow(),)
        self._refused_versions += 1
        if self._refused_versions > REFUSED_VERSIONS_MAX:
            return self._close("too many unsupported versions of ApiVersions")
        return (Allow(),)

    def on_token_removed(self) -> Effects:
        """Handles a request if the delegation token of the session no longer counts."""
        return self._close(
            "the session's delegation token was removed or has expired, or this broker cannot "
            "check it now"
        )

    def on_deadline(self, now_ms: int) -> Effects:
        """Handles the time at `deadline_ms`. A call that comes too early is harmless."""
        if self._state is not _State.CLOSED and self._is_late(now_ms):
            return self._close(_TOO_LATE)
        return ()

    def on_disconnect(self) -> None:
        """Handles the end of the connection: nothing has an effect afterwards."""
        self._close("")

    def _on_renewal(self, version: int, mechanism: str, now_ms: int) -> Effects:
        """Begins re-authentication. Kafka answers an attempt that it does not allow with an error,
        and the connection continues until the session expires."""
        last = self._last_renewal_ms
        is_early = last is not None and now_ms - last < REAUTHENTICATION_INTERVAL_MS
        if self._expires_ms is None or is_early:
            if self._is_expired(now_ms):
                return self._close(_EXPIRED)
            return (HandshakeReply(ErrorCode.ILLEGAL_SASL_STATE),)
        if version not in _HANDSHAKE_VERSIONS:
            return self._close(f"SaslHandshake version {version} is not supported")
        self._last_renewal_ms = now_ms
        self._deadline_ms = now_ms + self._settings.deadline_ms
        if mechanism != self._chosen.name:
            reply = HandshakeReply(ErrorCode.UNSUPPORTED_SASL_MECHANISM, (self._chosen.name,))
            reason = "re-authentication with another mechanism"
            return self._fail(reply, reason, now_ms, claimed=self._principal)
        return self._begin(version, self._chosen)

    def _begin(self, version: int, chosen: OfferedMechanism) -> Effects:
        self._chosen = chosen
        self._has_chosen = True
        self._exchange = chosen.new_exchange()
        self._is_raw = version == 0
        self._steps = 0
        self._state = _State.TOKENS
        return (HandshakeReply(ErrorCode.NONE, tuple(self._mechanisms)),)

    def _refuse_mechanism(self, now_ms: int) -> Effects:
        self._refused_handshakes += 1
        self._state = _State.HANDSHAKE
        reply = HandshakeReply(ErrorCode.UNSUPPORTED_SASL_MECHANISM, tuple(self._mechanisms))
        if self._refused_handshakes <= REFUSED_HANDSHAKES_MAX:
            return (reply,)
        return self._fail(reply, "the client asks for mechanisms that are not enabled", now_ms)

    def _on_step(self, step: Step, now_ms: int, wall_ms: int) -> Effects:
        if isinstance(step, Wait):
            self._state = _State.WAIT
            return (step,)
        if isinstance(step, Challenge):
            return (TokenReply(token=step.token, is_raw=self._is_raw),)
        if isinstance(step, Accepted):
            return self._accept(step, now_ms, wall_ms)
        reply = None if self._is_raw else TokenReply(_FAILED, FAILED_TEXT)
        return self._fail(
            reply,
            step.reason,
            now_ms,
            began_ms=self._began_ms,
            claimed=step.claimed,
            token_id=step.token_id,
        )

    def _accept(self, accepted: Accepted, now_ms: int, wall_ms: int) -> Effects:
        """Ends an authentication, unless it must not count.

        A token may be accepted shortly after its expiry, because clocks differ. A session without
        any time left would be closed at the next request, so it is refused at once.
        """
        before, principal = self._principal, accepted.principal
        limits = [] if self._chosen.max_reauth_ms <= 0 else [self._chosen.max_reauth_ms]
        if accepted.expires_at_ms is not None:
            limits.append(accepted.expires_at_ms - wall_ms)
        lifetime_ms = min(limits, default=None)
        problem = name_problem(principal)
        is_name = problem is None
        if is_name and before is not None and before != principal:
            problem = f"re-authentication of {before!r} as another user"
        elif is_name and before is not None and self._has_token != (accepted.token_id is not None):
            problem = "re-authentication with a token instead of a password, or vice versa"
        elif is_name and lifetime_ms is not None and lifetime_ms <= 0:
            problem = "the token has expired"
        if problem is not None:
            claimed = principal if is_name else None
            rejected = Rejected(problem, claimed, accepted.token_id)
            return self._on_step(rejected, now_ms, wall_ms)
        self._principal = principal
        self._has_token = accepted.token_id is not None
        self._expires_ms = None if lifetime_ms is None else now_ms + lifetime_ms
        self._deadline_ms = None
        self._exchange = None
        self._state = _State.AUTHENTICATED
        return (
            Authenticated(principal, self._chosen.name, before is not None, accepted.token_id),
            TokenReply(token=accepted.token, lifetime_ms=lifetime_ms or 0, is_raw=self._is_raw),
        )

    def _fail(
        self,
        reply: Reply | None,
        reason: str,
        now_ms: int,
        *,
        began_ms: int | None = None,
        claimed: str | None = None,
        token_id: str | None = None,
    ) -> Effects:
        """Ends the connection late. `began_ms` is when the delay began, if that was not now."""
        self._close(reason)
        passed_ms = 0 if began_ms is None else now_ms - began_ms
        delay_ms = _remaining_ms(self._settings.failure_delay_ms, passed_ms)
        due_ms = now_ms + delay_ms
        return (DelayThenClose(delay_ms, due_ms, reply, reason, claimed, token_id),)

    def _close(self, reason: str) -> Effects:
        self._state = _State.CLOSED
        self._deadline_ms = None
        self._exchange = None
        return (Close(reason),)

    def _is_expired(self, now_ms: int) -> bool:
        return self._expires_ms is not None and now_ms >= self._expires_ms

    def _is_late(self, now_ms: int) -> bool:
        return self._deadline_ms is not None and now_ms >= self._deadline_ms


def _remaining_ms(delay_ms: int, passed_ms: int) -> int:
    """Returns the time to the end of the delay, or to its next multiple if it has passed."""
    if delay_ms <= 0:
        return 0
    return delay_ms - passed_ms if passed_ms <= delay_ms else -passed_ms % delay_ms


_FAILED: Final = ErrorCode.SASL_AUTHENTICATION_FAILED
_HANDSHAKE_VERSIONS: Final = frozenset({0, 1})
_TOO_LATE: Final = "the authentication took longer than its deadline"
_EXPIRED: Final = "the session has expired, and the client has not re-authenticated"
_NO_RENEWAL: Final = "the client is authenticated: send SaslHandshake first to re-authenticate"
