"""The machine of one connection with SASL: what a client may send, and when."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.security.decoys import Decoys
from penstock.security.exchange import Accepted, Challenge, KeyFetch, Rejected, Step, Wait
from penstock.security.plain import PlainScramServer
from penstock.security.sasl_session import (
    FAILED_TEXT,
    FRAME_BYTES_MAX,
    REFUSED_VERSIONS_MAX,
    STEPS_MAX,
    Allow,
    Authenticated,
    Close,
    DelayThenClose,
    Effect,
    Effects,
    HandshakeReply,
    OfferedMechanism,
    Refuse,
    SaslSession,
    SaslSettings,
    TokenReply,
)
from penstock.security.scram import ScramClient, ScramServer
from penstock.security.scram_credentials import (
    ScramCredential,
    ScramMechanism,
    from_salted_password,
    password_hash,
)
from penstock.wire.api import ApiKey
from penstock.wire.errors import ErrorCode

API_VERSIONS, PRODUCE, METADATA = ApiKey.API_VERSIONS, ApiKey.PRODUCE, ApiKey.METADATA
SCRAM, FAKE = "SCRAM-SHA-256", "FAKE"
SHA_256 = ScramMechanism.SHA_256
SALT = b"salt of the users"
SALTED = password_hash(SHA_256, "pencil", SALT, 4096).run()
CREDENTIAL = from_salted_password(SHA_256, SALTED, SALT, 4096)
USERS = {"alice": CREDENTIAL, "bob": CREDENTIAL}
DECOYS = Decoys(b"a secret of the cluster")
NONCE, WALL = b"a-nonce-of-the-client", 1_000_000_000
OFFERED = (SCRAM, FAKE)
FAILURE = TokenReply(ErrorCode.SASL_AUTHENTICATION_FAILED, FAILED_TEXT)


class _Fake:
    """A mechanism that does what the token says: `yes:alice:5` accepts alice for five more ms."""

    def step(self, token: bytes, now_ms: int) -> Step:
        verb, _, rest = token.partition(b":")
        name, _, lifetime = rest.decode().partition(":")
        if verb == b"yes":
            return Accepted(name, b"done", now_ms + int(lifetime) if lifetime else None)
        if verb == b"wait":
            return Wait(KeyFetch(name))
        return Challenge(b"more") if verb == b"more" else Rejected("no", name)

    def resume(self, result: bytes | None, now_ms: int) -> Step:
        return Rejected("no key") if result is None else self.step(result, now_ms)


def _session(
    users: dict[str, ScramCredential] | None = None, max_reauth_ms: int = 0
) -> SaslSession:
    known = USERS if users is None else users
    mechanisms = [
        OfferedMechanism(SCRAM, lambda: _scram_server(known), max_reauth_ms),
        OfferedMechanism(FAKE, _Fake, max_reauth_ms),
    ]
    return SaslSession(mechanisms, SaslSettings(failure_delay_ms=100, deadline_ms=10_000), 0)


def _scram_server(users: dict[str, ScramCredential]) -> ScramServer:
    return ScramServer(SHA_256, users.get, DECOYS, b"a-nonce-of-the-server")


def _scram_tokens(session: SaslSession, user: str, now_ms: int, salted: bytes) -> Effects:
    """Sends both tokens of SCRAM and returns the answer to the second."""
    client = ScramClient(SHA_256, user, "pencil", NONCE)
    (challenge,) = session.on_token(client.first(), now_ms, WALL)
    assert isinstance(challenge, TokenReply)
    assert (challenge.code, challenge.lifetime_ms) == (0, 0)
    client.on_server_first(challenge.token)
    return session.on_token(client.final(salted), now_ms, WALL)


def _login(session: SaslSession, user: str = "alice", now_ms: int = 0) -> Effects:
    assert session.on_handshake(1, SCRAM, now_ms) == (HandshakeReply(ErrorCode.NONE, OFFERED),)
    return _scram_tokens(session, user, now_ms, SALTED)


def _fake_login(session: SaslSession, token: bytes, now_ms: int = 0) -> Effects:
    assert session.on_handshake(1, FAKE, now_ms) == (HandshakeReply(ErrorCode.NONE, OFFERED),)
    return session.on_token(token, now_ms, WALL + now_ms)


def _is_dead(session: SaslSession) -> bool:
    """Returns whether nothing that a client can send has an effect any more."""
    events = [
        *session.on_handshake(1, FAKE, 0),
        *session.on_token(b"yes:alice", 0, WALL),
        *session.on_other_request(API_VERSIONS, 0),
        *session.on_other_request(PRODUCE, 0),
        *session.on_work_done(b"yes:alice", 0, WALL),
        *session.on_deadline(1 << 60),
    ]
    return not events and session.deadline_ms is None and not session.is_authenticated


def _closes(session: SaslSession, effects: Effects) -> bool:
    """Returns whether the connection is closed at once."""
    return [type(each) for each in effects] == [Close] and _is_dead(session)


def _failure(session: SaslSession, effects: Effects) -> DelayThenClose:
    """Returns the only effect, which ends the connection late."""
    (closing,) = effects
    assert isinstance(closing, DelayThenClose)
    assert closing.delay_ms == 100
    assert _is_dead(session)
    return closing


def test_a_client_authenticates_and_then_sends_any_request() -> None:
    session = _session()
    assert session.on_other_request(API_VERSIONS, 0) == (Allow(),)
    effects = _login(session)
    assert effects[0] == Authenticated("alice", SCRAM)
    assert isinstance(effects[1], TokenReply)
    assert effects[1].token.startswith(b"v=")
    assert (effects[1].code, effects[1].lifetime_ms, effects[1].is_raw) == (0, 0, False)
    assert session.principal == "alice"
    assert session.frame_bytes_max is None
    assert session.deadline_ms is None
    for api_key in (PRODUCE, METADATA, API_VERSIONS, API_VERSIONS):
        assert session.on_other_request(api_key, 1 << 50) == (Allow(),)


@pytest.mark.parametrize("api_key", [*sorted(set(ApiKey) - {API_VERSIONS}), 9999, -1])
def test_no_other_request_is_processed_before_authentication(api_key: int) -> None:
    for versions_first in (False, True):
        session = _session()
        if versions_first:
            session.on_other_request(API_VERSIONS, 0)
        assert session.frame_bytes_max == FRAME_BYTES_MAX
        assert _closes(session, session.on_other_request(api_key, 0))
    session = _session()
    assert _closes(session, session.on_token(b"yes:alice", 0, WALL))


def test_api_versions_is_answered_once_and_again_after_an_unsupported_version() -> None:
    for unsupported in range(REFUSED_VERSIONS_MAX + 1):
        session = _session()
        for _ in range(unsupported):
            assert session.on_other_request(API_VERSIONS, 0, False) == (Allow(),)
        assert session.on_other_request(API_VERSIONS, 0) == (Allow(),)
        assert _closes(session, session.on_other_request(API_VERSIONS, 0))
    session = _session()
    for _ in range(REFUSED_VERSIONS_MAX):
        session.on_other_request(API_VERSIONS, 0, False)
    assert _closes(session, session.on_other_request(API_VERSIONS, 0, False))


def test_an_unknown_mechanism_is_answered_and_the_client_may_try_one_more() -> None:
    refusal = HandshakeReply(ErrorCode.UNSUPPORTED_SASL_MECHANISM, OFFERED)
    good, bad, curious = _session(), _session(), _session()
    for session in (good, bad, curious):
        assert session.on_handshake(1, "GSSAPI", 0) == (refusal,)
    assert isinstance(_login(good)[0], Authenticated)
    assert _failure(bad, bad.on_handshake(1, "scram-sha-256", 0)).reply == refusal
    assert _closes(curious, curious.on_other_request(API_VERSIONS, 0))


def test_an_unknown_version_of_the_handshake_closes_the_connection() -> None:
    for version in (-1, 2):
        session = _session()
        assert _closes(session, session.on_handshake(version, SCRAM, 0))


def test_other_requests_during_authentication_are_an_illegal_state() -> None:
    for api_key in (API_VERSIONS, PRODUCE, METADATA):
        session = _session()
        session.on_handshake(1, SCRAM, 0)
        failure = _failure(session, session.on_other_request(api_key, 0))
        assert failure.reply == Refuse(ErrorCode.ILLEGAL_SASL_STATE)
    session = _session()
    session.on_handshake(1, SCRAM, 0)
    failure = _failure(session, session.on_handshake(1, FAKE, 0))
    assert failure.reply == HandshakeReply(ErrorCode.ILLEGAL_SASL_STATE)


def test_all_failures_look_the_same_to_a_client_and_differ_in_the_audit_log() -> None:
    failures = []
    for user, salted in (("alice", bytes(32)), ("nobody", bytes(32)), ("nobody", SALTED)):
        session = _session()
        session.on_handshake(1, SCRAM, 0)
        failures.append(_failure(session, _scram_tokens(session, user, 0, salted)))
    session = _session()
    failures.append(_failure(session, _fake_login(session, b"garbage")))
    assert [each.reply for each in failures] == [FAILURE] * 4
    assert [each.claimed for each in failures] == ["alice", "nobody", "nobody", ""]
    assert failures[0].reason == "the password is wrong"
    assert failures[1].reason == "the user has no password for SCRAM-SHA-256"


def test_tokens_are_raw_after_handshake_version_0_and_a_failure_is_only_a_late_close() -> None:
    good, bad = _session(), _session()
    for session, version in ((good, 0), (bad, 0), (_session(), 1)):
        session.on_handshake(version, SCRAM, 0)
        assert session.expects_raw_token == (version == 0)
    authenticated, reply = _scram_tokens(good, "alice", 0, SALTED)
    assert isinstance(authenticated, Authenticated)
    assert isinstance(reply, TokenReply)
    assert reply.is_raw
    assert not good.expects_raw_token
    assert _failure(bad, bad.on_token(b"garbage", 0, WALL)).reply is None


def test_tokens_are_limited_in_number_and_size() -> None:
    session = _session()
    session.on_handshake(1, FAKE, 0)
    for _ in range(STEPS_MAX):
        assert session.on_token(b"more", 0, WALL) == (TokenReply(token=b"more"),)
    assert _failure(session, session.on_token(b"yes:alice", 0, WALL)).reply == FAILURE
    session = _session()
    effects = _fake_login(session, b"yes:alice:" + b"1" * FRAME_BYTES_MAX)
    assert _failure(session, effects).reply == FAILURE


@pytest.mark.parametrize("steps", [0, 1, 2, 3])
def test_the_deadline_is_one_for_the_whole_authentication(steps: int) -> None:
    def act(session: SaslSession, step: int, now: int) -> Effects:
        if step == 0:
            return session.on_other_request(API_VERSIONS, now)
        if step == 1:
            return session.on_handshake(1, FAKE, now)
        return session.on_token(b"more" if step == 2 else b"yes:alice", now, WALL)

    for is_timer_late in (False, True):
        session = _session()
        for step in range(steps):
            act(session, step, 9_999)
        assert session.deadline_ms == 10_000
        assert session.on_deadline(9_999) == ()
        end = act(session, steps, 10_000) if is_timer_late else session.on_deadline(10_000)
        assert _closes(session, end)


def test_slow_work_continues_the_exchange() -> None:
    session = _session()
    assert _fake_login(session, b"wait:key1") == (Wait(KeyFetch("key1")),)
    assert not session.is_authenticated
    assert session.on_work_done(b"yes:alice", 0, WALL)[0] == Authenticated("alice", FAKE)
    assert session.on_work_done(b"yes:bob", 0, WALL) == (), "there was one piece of work"
    assert session.principal == "alice"


def test_work_that_fails_or_comes_too_late_does_not_authenticate() -> None:
    failed, late, gone = _session(), _session(), _session()
    for session in (failed, late, gone):
        _fake_login(session, b"wait:key1")
    assert _failure(failed, failed.on_work_done(None, 0, WALL)).reply == FAILURE
    assert _closes(late, late.on_work_done(b"yes:alice", 10_000, WALL))
    gone.on_disconnect()
    assert _is_dead(gone)


def test_nothing_may_be_sent_while_work_is_done() -> None:
    token, request = _session(), _session()
    for session in (token, request):
        _fake_login(session, b"wait:key1")
    assert _closes(token, token.on_token(b"yes:alice", 0, WALL))
    assert _failure(request, request.on_other_request(PRODUCE, 0))


def test_plain_with_slow_work_runs_in_a_session() -> None:
    offered = OfferedMechanism("PLAIN", lambda: PlainScramServer(USERS.get, DECOYS))
    session = SaslSession([offered], SaslSettings(), 0)
    session.on_handshake(1, "PLAIN", 0)
    assert isinstance(session.on_token(b"\0alice\0pencil", 0, WALL)[0], Wait)
    answer = Authenticated("alice", "PLAIN"), TokenReply()
    assert session.on_work_done(SALTED, 0, WALL) == answer


@pytest.mark.parametrize(
    ("max_reauth_ms", "token", "lifetime_ms"),
    [
        (0, b"yes:alice", 0),
        (5000, b"yes:alice", 5000),
        (0, b"yes:alice:3000", 3000),
        (5000, b"yes:alice:3000", 3000),
        (5000, b"yes:alice:7000", 5000),
    ],
)
def test_the_lifetime_is_the_shorter_of_the_setting_and_the_token(
    max_reauth_ms: int, token: bytes, lifetime_ms: int
) -> None:
    session = _session(max_reauth_ms=max_reauth_ms)
    assert _fake_login(session, token) == (
        Authenticated("alice", FAKE),
        TokenReply(token=b"done", lifetime_ms=lifetime_ms),
    )
    if lifetime_ms:
        assert session.on_other_request(PRODUCE, lifetime_ms - 1) == (Allow(),)
        assert _closes(session, session.on_other_request(PRODUCE, lifetime_ms))
    else:
        assert session.on_other_request(PRODUCE, 1 << 60) == (Allow(),)


@pytest.mark.parametrize("token", [b"yes:alice:0", b"yes:alice:-5", b"yes:"])
def test_an_expired_token_and_an_empty_name_are_failures(token: bytes) -> None:
    session = _session()
    assert _failure(session, _fake_login(session, token)).reply == FAILURE
    assert session.principal is None


def test_an_expired_session_is_closed_by_any_request_but_a_handshake() -> None:
    request, token, renewed = (_session(max_reauth_ms=5000) for _ in range(3))
    for session in (request, token, renewed):
        _login(session)
    assert _closes(request, request.on_other_request(API_VERSIONS, 5000))
    assert _closes(token, token.on_token(b"yes:alice", 5000, WALL))
    assert _login(renewed, now_ms=5000)[0] == Authenticated("alice", SCRAM, is_again=True)
    assert renewed.on_other_request(PRODUCE, 9_999) == (Allow(),)
    assert _closes(renewed, renewed.on_other_request(PRODUCE, 10_000))


def test_re_authentication_without_an_expiry_is_an_illegal_state() -> None:
    session = _session()
    _login(session)
    assert session.on_handshake(1, SCRAM, 5000) == (HandshakeReply(ErrorCode.ILLEGAL_SASL_STATE),)
    (reply,) = session.on_token(b"yes:alice", 5000, WALL)
    assert isinstance(reply, TokenReply)
    assert reply.code is ErrorCode.ILLEGAL_SASL_STATE
    assert session.on_other_request(PRODUCE, 5000) == (Allow(),)


def test_re_authentication_is_limited_to_once_a_second() -> None:
    session = _session(max_reauth_ms=60_000)
    _login(session)
    _login(session, now_ms=10)
    assert session.on_handshake(1, SCRAM, 1009) == (HandshakeReply(ErrorCode.ILLEGAL_SASL_STATE),)
    assert session.is_authenticated
    assert isinstance(_login(session, now_ms=1010)[0], Authenticated)
    session = _session(max_reauth_ms=500)
    _login(session)
    _login(session, now_ms=10)
    assert _closes(session, session.on_handshake(1, SCRAM, 600)), "it has expired"


def test_re_authentication_as_another_user_fails() -> None:
    session = _session(max_reauth_ms=60_000)
    _login(session, "alice")
    failure = _failure(session, _login(session, "bob", now_ms=5000))
    assert (failure.reply, failure.claimed) == (FAILURE, "bob")
    assert session.principal == "alice"


def test_re_authentication_with_another_mechanism_fails() -> None:
    for mechanism in (FAKE, "GSSAPI"):
        session = _session(max_reauth_ms=60_000)
        _login(session)
        failure = _failure(session, session.on_handshake(1, mechanism, 5000))
        assert failure.reply == HandshakeReply(ErrorCode.UNSUPPORTED_SASL_MECHANISM, (SCRAM,))


def test_no_request_is_processed_during_re_authentication() -> None:
    session = _session(max_reauth_ms=60_000)
    _login(session)
    session.on_handshake(1, SCRAM, 5000)
    assert not session.is_authenticated
    assert session.principal == "alice", "requests in progress keep their user"
    assert session.frame_bytes_max == FRAME_BYTES_MAX
    failure = _failure(session, session.on_other_request(PRODUCE, 5000))
    assert failure.reply == Refuse(ErrorCode.ILLEGAL_SASL_STATE)


def test_re_authentication_has_its_own_deadline() -> None:
    session = _session(max_reauth_ms=60_000)
    _login(session)
    session.on_handshake(1, SCRAM, 50_000)
    assert session.deadline_ms == 60_000


def test_a_deleted_user_stays_connected_until_re_authentication() -> None:
    users = {"alice": CREDENTIAL}
    session = _session(users, max_reauth_ms=60_000)
    _login(session)
    del users["alice"]
    assert session.on_other_request(PRODUCE, 59_999) == (Allow(),)
    assert _failure(session, _login(session, now_ms=59_999)).reply == FAILURE


def test_a_listener_without_mechanisms_is_refused() -> None:
    with pytest.raises(ValueError, match=r"sasl\.enabled\.mechanisms"):
        SaslSession([], SaslSettings(), 0)


_ACTIONS = st.sampled_from(
    [
        *(("handshake", version) for version in (0, 1, 2)),
        *(("first", user) for user in (0, 1)),
        *(("request", api_key) for api_key in (0, 3, 18)),
        *(("time", passed) for passed in (1, 500, 4000)),
        *((action, 1) for action in ("other mechanism", "proof", "wrong proof", "garbage")),
        *((action, 1) for action in ("deadline", "work done")),
    ]
)
_LOGIN = [("request", 18), ("handshake", 1), ("first", 0), ("proof", 1)]


class _Walk:
    """A client that does anything, and the facts that must hold after each step."""

    def __init__(self) -> None:
        self.session = _session(max_reauth_ms=5000)
        self.now = 0
        self.client: ScramClient | None = None
        self.expires: int | None = None
        self.served_versions = 0

    def act(self, action: str, argument: int) -> None:
        before = self.session.principal
        effects = self._send(action, argument)
        granted = [each for each in effects if isinstance(each, Authenticated)]
        if granted:
            assert (action, granted[0].principal) == ("proof", "alice")
            assert before in {None, "alice"}
            self.expires = self.now + 5000
        if any(isinstance(each, Allow) for each in effects):
            assert action == "request"
            if self.expires is None:
                assert argument == API_VERSIONS
                self.served_versions += 1
                assert self.served_versions == 1
            else:
                assert self.now < self.expires
                assert self.session.is_authenticated
        assert self.session.is_authenticated <= (self.expires is not None)
        assert (self.session.principal is None) == (self.expires is None)
        if any(isinstance(each, Close | DelayThenClose) for each in effects):
            assert _is_dead(self.session)

    def _send(self, action: str, argument: int) -> Sequence[Effect]:
        session, now = self.session, self.now
        match action:
            case "handshake":
                return session.on_handshake(argument, SCRAM, now)
            case "other mechanism":
                return session.on_handshake(1, "GSSAPI", now)
            case "first":
                self.client = ScramClient(SHA_256, ("alice", "eve")[argument], "pencil", NONCE)
                effects = session.on_token(self.client.first(), now, WALL)
                reply = effects[0] if effects else None
                if isinstance(reply, TokenReply) and reply.code is ErrorCode.NONE:
                    self.client.on_server_first(reply.token)
                else:
                    self.client = None
                return effects
            case "proof" | "wrong proof":
                salted = SALTED if action == "proof" else bytes(32)
                token = self.client.final(salted) if self.client else b"c=biws,r=x,p=AAAA"
                self.client = None
                return session.on_token(token, now, WALL)
            case "garbage":
                return session.on_token(b"\0alice\0pencil", now, WALL)
            case "request":
                return session.on_other_request(argument, now)
            case "deadline":
                return session.on_deadline(now)
            case "work done":
                return session.on_work_done(SALTED, now, WALL)
        self.now += argument
        return ()


@settings(max_examples=300, deadline=None)
@given(st.booleans(), st.lists(_ACTIONS | st.sampled_from(_LOGIN), max_size=25))
def test_no_walk_authenticates_without_a_proof_or_sends_other_requests_before(
    logs_in: bool, actions: list[tuple[str, int]]
) -> None:
    walk = _Walk()
    for action, argument in (*(_LOGIN if logs_in else ()), *actions):
        walk.act(action, argument)


def test_the_walk_of_a_good_client_authenticates() -> None:
    walk = _Walk()
    for action, argument in (*_LOGIN, ("time", 1), ("request", 0), *_LOGIN[1:], ("request", 3)):
        walk.act(action, argument)
    assert (walk.session.is_authenticated, walk.expires) == (True, 5001)
