"""SCRAM with a delegation token: the broker's side, and what a session makes of it."""

from __future__ import annotations

import base64

import pytest

from penstock.security.decoys import Decoys
from penstock.security.delegation_tokens import DelegationToken, TokenKeys, TokenLogins
from penstock.security.exchange import Accepted, Challenge, PasswordHash, Rejected, Step, Wait
from penstock.security.sasl_session import (
    Authenticated,
    DelayThenClose,
    Effects,
    OfferedMechanism,
    SaslSession,
    SaslSettings,
    TokenReply,
)
from penstock.security.scram import ScramClient, ScramServer, nonce_text
from penstock.security.scram_credentials import ScramMechanism, from_salted_password, password_hash

KEYS = TokenKeys("a secret key for tests")
TOKEN = DelegationToken("u7HkYzQ0R1mV5p2d8sL3wA", "alice", "admin", (), 0, 10_000, 90_000)
PASSWORD = base64.b64encode(KEYS.hmac(TOKEN.token_id)).decode()
DECOYS = Decoys(b"a secret of the cluster")
NONCE = nonce_text(bytes(24))
SALT = b"salt of the users"
MECHANISMS = pytest.mark.parametrize("mechanism", ScramMechanism)
REFUSED = "the delegation token does not exist or has expired"


class Tokens(dict[str, DelegationToken]):
    """The tokens of a cluster, with what their logins share."""

    def __init__(self, *tokens: DelegationToken) -> None:
        super().__init__({each.token_id: each for each in tokens})
        self.logins = TokenLogins(KEYS, self.get)


def server(tokens: Tokens | None, mechanism: ScramMechanism) -> ScramServer:
    logins = None if tokens is None else tokens.logins
    return ScramServer(mechanism, lambda user: None, DECOYS, NONCE, logins)


def begin(
    exchange: ScramServer,
    mechanism: ScramMechanism,
    user: str = TOKEN.token_id,
    password: str = PASSWORD,
    *,
    tokenauth: bool = True,
) -> bytes:
    """Returns the last message of a client."""
    client = ScramClient(mechanism, user, password, NONCE, tokenauth=tokenauth)
    challenge = exchange.step(client.first(), 0)
    assert isinstance(challenge, Challenge)
    return client.final(client.on_server_first(challenge.token).run())


def log_in(
    tokens: Tokens, mechanism: ScramMechanism, password: str = PASSWORD, now_ms: int = 0
) -> Step:
    exchange = server(tokens, mechanism)
    step = exchange.step(begin(exchange, mechanism, password=password), now_ms)
    if isinstance(step, Wait):
        assert isinstance(step.work, PasswordHash)
        step = exchange.resume(step.work.run(), now_ms)
    return step


@MECHANISMS
def test_a_token_logs_its_owner_in_until_it_expires(mechanism: ScramMechanism) -> None:
    step = log_in(Tokens(TOKEN), mechanism, now_ms=TOKEN.expires_ms - 1)
    assert isinstance(step, Accepted)
    assert (step.principal, step.token_id) == ("alice", TOKEN.token_id)
    assert step.expires_at_ms == TOKEN.expires_ms
    assert PASSWORD not in repr(step)
    late = log_in(Tokens(TOKEN), mechanism, now_ms=TOKEN.expires_ms)
    assert late == Rejected(REFUSED, token_id=TOKEN.token_id)


@MECHANISMS
def test_the_keys_of_a_token_are_derived_once(mechanism: ScramMechanism) -> None:
    tokens = Tokens(TOKEN)
    assert isinstance(log_in(tokens, mechanism), Accepted)
    exchange = server(tokens, mechanism)
    assert isinstance(exchange.step(begin(exchange, mechanism), 0), Accepted)
    tokens.logins.forget(TOKEN.token_id)
    exchange = server(tokens, mechanism)
    assert isinstance(exchange.step(begin(exchange, mechanism), 0), Wait)


@MECHANISMS
def test_a_wrong_hmac_is_refused_before_and_after_the_keys_are_derived(
    mechanism: ScramMechanism,
) -> None:
    tokens = Tokens(TOKEN)
    for _ in range(2):
        step = log_in(tokens, mechanism, password="wrong")
        assert step == Rejected("the password is wrong", token_id=TOKEN.token_id)


@MECHANISMS
def test_an_unknown_id_gets_a_challenge_like_others(mechanism: ScramMechanism) -> None:
    """And it needs no work, so that nobody can keep the broker busy with ids that it makes up."""
    exchange = server(Tokens(TOKEN), mechanism)
    final = begin(exchange, mechanism, "another-id")
    assert exchange.step(final, 0) == Rejected(REFUSED, token_id="another-id")
    first, second = (KEYS.salt(mechanism, each) for each in (TOKEN.token_id, "another-id"))
    assert first != second and len(first) == len(second)


def test_a_token_that_is_removed_during_the_login_is_refused() -> None:
    """Between the two messages, and while the keys are derived."""
    mechanism = ScramMechanism.SHA_256
    tokens = Tokens(TOKEN)
    exchange = server(tokens, mechanism)
    final = begin(exchange, mechanism)
    waiting = server(tokens, mechanism)
    step = waiting.step(begin(waiting, mechanism), 0)
    assert isinstance(step, Wait) and isinstance(step.work, PasswordHash)
    tokens.clear()
    assert exchange.step(final, 0) == Rejected(REFUSED, token_id=TOKEN.token_id)
    assert waiting.resume(step.work.run(), 0) == Rejected(REFUSED, token_id=TOKEN.token_id)
    assert tokens.logins.credential(mechanism, TOKEN.token_id) is None


def test_work_that_failed_ends_the_exchange() -> None:
    exchange = server(Tokens(TOKEN), ScramMechanism.SHA_256)
    final = begin(exchange, ScramMechanism.SHA_256)
    assert isinstance(exchange.step(final, 0), Wait)
    assert isinstance(exchange.resume(None, 0), Rejected)
    assert isinstance(exchange.resume(bytes(32), 0), Rejected)
    assert isinstance(exchange.step(final, 0), Rejected)


def test_a_token_is_not_a_user_and_a_user_is_not_a_token() -> None:
    mechanism = ScramMechanism.SHA_256
    exchange = server(Tokens(TOKEN), mechanism)
    step = exchange.step(begin(exchange, mechanism, tokenauth=False), 0)
    assert isinstance(step, Rejected) and step.claimed == TOKEN.token_id
    exchange = server(Tokens(TOKEN), mechanism)
    step = exchange.step(begin(exchange, mechanism, "alice"), 0)
    assert step == Rejected(REFUSED, token_id="alice")


@pytest.mark.parametrize("value", [b"true", b"TRUE"])
def test_without_a_secret_key_no_token_is_accepted(value: bytes) -> None:
    exchange = server(None, ScramMechanism.SHA_256)
    step = exchange.step(b"n,,n=an-id,r=abc,tokenauth=" + value, 0)
    assert isinstance(step, Rejected) and "delegation.token.secret.key" in step.reason
    assert step.token_id == "an-id"


def test_another_value_of_the_extension_means_a_user() -> None:
    exchange = server(None, ScramMechanism.SHA_256)
    assert isinstance(exchange.step(b"n,,n=alice,r=abc,tokenauth=false", 0), Challenge)


# -- sessions ------------------------------------------------------------------------------------


SHA_256 = ScramMechanism.SHA_256
SALTED = password_hash(SHA_256, "pencil", SALT, 4096).run()
CREDENTIAL = from_salted_password(SHA_256, SALTED, SALT, 4096)


class Session:
    def __init__(self, tokens: Tokens) -> None:
        def exchange() -> ScramServer:
            return ScramServer(SHA_256, {"alice": CREDENTIAL}.get, DECOYS, NONCE, tokens.logins)

        offered = [OfferedMechanism(SHA_256.sasl_name, exchange, 60_000)]
        self.machine = SaslSession(offered, SaslSettings(), 0)

    def log_in(self, user: str, password: str, tokenauth: bool, now_ms: int) -> Effects:
        machine = self.machine
        machine.on_handshake(1, SHA_256.sasl_name, now_ms)
        client = ScramClient(SHA_256, user, password, NONCE, tokenauth=tokenauth)
        (reply,) = machine.on_token(client.first(), now_ms, now_ms)
        assert isinstance(reply, TokenReply)
        final = client.final(client.on_server_first(reply.token).run())
        effects = machine.on_token(final, now_ms, now_ms)
        if isinstance(effects[0], Wait):
            work = effects[0].work
            assert isinstance(work, PasswordHash)
            effects = machine.on_work_done(work.run(), now_ms, now_ms)
        return effects


def test_a_session_ends_when_its_token_expires() -> None:
    session = Session(Tokens(TOKEN))
    authenticated, reply = session.log_in(TOKEN.token_id, PASSWORD, True, 4000)
    assert authenticated == Authenticated("alice", SHA_256.sasl_name, False, TOKEN.token_id)
    assert isinstance(reply, TokenReply) and reply.lifetime_ms == 6000
    assert session.machine.on_other_request(3, 9999)
    again, _ = session.log_in(TOKEN.token_id, PASSWORD, True, 9999)
    assert again == Authenticated("alice", SHA_256.sasl_name, True, TOKEN.token_id)


def test_a_session_can_be_renewed_with_another_token_of_the_owner() -> None:
    other = DelegationToken("token-0000000000000001", "alice", "alice", (), 0, 90_000, 90_000)
    session = Session(Tokens(TOKEN, other))
    session.log_in(TOKEN.token_id, PASSWORD, True, 0)
    password = base64.b64encode(KEYS.hmac(other.token_id)).decode()
    renewed, reply = session.log_in(other.token_id, password, True, 5000)
    assert renewed == Authenticated("alice", SHA_256.sasl_name, True, other.token_id)
    assert isinstance(reply, TokenReply) and reply.lifetime_ms == 60_000


@pytest.mark.parametrize("token_first", [True, False])
def test_a_session_keeps_its_kind(token_first: bool) -> None:
    """A session with a token must not become one that may ask for tokens."""
    session = Session(Tokens(TOKEN))
    logins = [(TOKEN.token_id, PASSWORD, True), ("alice", "pencil", False)]
    if not token_first:
        logins.reverse()
    assert isinstance(session.log_in(*logins[0], 0)[0], Authenticated)
    (refused,) = session.log_in(*logins[1], 5000)
    assert isinstance(refused, DelayThenClose) and "instead of a password" in refused.reason
