"""SCRAM in clients: RFC vectors, hostile brokers, and logins at our own broker."""

from __future__ import annotations

import base64

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.security.decoys import Decoys
from penstock.security.exchange import NAME_BYTES_MAX, Accepted, Challenge, Rejected
from penstock.security.scram import (
    CLIENT_ITERATIONS_MAX,
    MESSAGE_BYTES_MAX,
    ScramClient,
    ScramFailed,
    ScramServer,
    nonce_text,
)
from penstock.security.scram_credentials import (
    PASSWORD_BYTES_MAX,
    PasswordUnfit,
    ScramCredential,
    ScramMechanism,
    check_new_password,
    from_salted_password,
    password_hash,
    saslprep,
)
from penstock.security.user_names import name_problem

NONCE = b"rOprNGfwEbeRWgbNEkqO"
SERVER_FIRST = (
    b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
)
SERVER_FINAL = b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="
"""From the example of RFC 7677."""

DECOYS = Decoys(b"a secret of the cluster")
SALT = b"salt of the user"
SHA_256, SHA_512 = ScramMechanism


def _client(password: str = "pencil") -> ScramClient:
    return ScramClient(SHA_256, "user", password, NONCE)


def _credential(mechanism: ScramMechanism, password: str) -> ScramCredential:
    salted = password_hash(mechanism, password, SALT, 4096).run()
    return from_salted_password(mechanism, salted, SALT, 4096)


def test_the_client_plays_its_part_in_the_example_of_rfc_7677() -> None:
    client = _client()
    assert client.first() == b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
    work = client.on_server_first(SERVER_FIRST)
    assert (work.hash_name, work.iterations) == ("sha256", 4096)
    assert client.final(work.run()) == (
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,"
        b"p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    )
    client.on_server_final(SERVER_FINAL)


@pytest.mark.parametrize(
    ("message", "problem"),
    [
        (SERVER_FIRST.replace(b"i=4096", b"i=4095"), "4095 iterations"),
        (SERVER_FIRST.replace(b"i=4096", b"i=1000001"), "1000001 iterations"),
        (SERVER_FIRST.replace(b"i=4096", b"i=1000000000"), "1000000000 iterations"),
        (SERVER_FIRST.replace(b"i=4096", b"i=" + b"9" * 1000), "far too many"),
        (SERVER_FIRST.replace(b"i=4096", b"i=-4096"), "not a number"),
        (SERVER_FIRST.replace(b"i=4096", b"i=+4096"), "not a number"),
        (SERVER_FIRST.replace(b"i=4096", b"i="), "not a number"),
        (SERVER_FIRST.replace(b"rOpr", b"xOpr"), "does not extend"),
        (SERVER_FIRST.replace(b"%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0", b""), "does not extend"),
        (SERVER_FIRST.replace(b"W22Z", b"W22!"), "not base64"),
        (SERVER_FIRST.replace(b"W22ZaJ0SNY7soEsUEjb6gQ==", b""), "empty or not base64"),
        (SERVER_FIRST.replace(b"s=", b"s=" + b"A" * 400), "the salt does not have"),
        (b"m=ext," + SERVER_FIRST, "mandatory extension"),
        (SERVER_FIRST + b",m=ext", "mandatory extension"),
        (SERVER_FIRST + b",x=" + b"y" * MESSAGE_BYTES_MAX, "more than 4096 bytes"),
        (b"i=4096,s=AAAA,r=" + NONCE, "does not begin with r="),
        (b"e=other-error", "does not begin with r="),
        (b"", "not an attribute"),
    ],
)
def test_a_wrong_first_message_of_a_broker_is_refused_before_any_work(
    message: bytes, problem: str
) -> None:
    with pytest.raises(ScramFailed, match=problem):
        _client().on_server_first(message)


def test_the_most_iterations_that_a_client_does_are_accepted() -> None:
    message = SERVER_FIRST.replace(b"i=4096", b"i=%d" % CLIENT_ITERATIONS_MAX)
    assert _client().on_server_first(message).iterations == CLIENT_ITERATIONS_MAX


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"v=",
        b"v=AAAA",
        b"v=" + base64.b64encode(bytes(32)),
        b"x=1," + SERVER_FINAL,
        b"e=invalid-proof",
        SERVER_FINAL + b",m=1",
    ],
)
def test_a_broker_that_does_not_know_the_password_is_refused(message: bytes) -> None:
    client = _client()
    client.final(client.on_server_first(SERVER_FIRST).run())
    with pytest.raises(ScramFailed):
        client.on_server_final(message)


def test_a_broker_cannot_skip_a_step() -> None:
    with pytest.raises(ScramFailed, match="has not proved"):
        _client().on_server_final(SERVER_FINAL)
    with pytest.raises(ScramFailed, match="must be read before"):
        _client().final(bytes(32))


def test_the_work_does_not_show_the_password() -> None:
    work = _client("hunter2").on_server_first(SERVER_FIRST)
    assert repr(work) == "PasswordHash(hash_name='sha256', iterations=4096)"


@pytest.mark.parametrize("user", ["", "a\0b", "\ud800", "x" * (NAME_BYTES_MAX + 1)])
def test_names_that_no_broker_accepts_are_refused(user: str) -> None:
    with pytest.raises(ScramFailed):
        ScramClient(SHA_256, user, "pencil", NONCE)


@pytest.mark.parametrize("password", ["", "\ud800", "x" * (PASSWORD_BYTES_MAX + 1)])
def test_passwords_without_usable_bytes_are_refused(password: str) -> None:
    with pytest.raises(PasswordUnfit):
        ScramClient(SHA_256, "user", password, NONCE)


_NAMES = st.text(st.characters(codec="utf-8"), min_size=1, max_size=40).filter(
    lambda name: name_problem(name) is None
)
_PASSWORDS = st.text(st.characters(codec="utf-8"), min_size=1, max_size=40)


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from([*ScramMechanism]),
    _NAMES | st.text(st.sampled_from("=,2C3Dan"), min_size=1, max_size=9),
    _PASSWORDS,
    st.binary(min_size=24, max_size=24),
)
def test_odd_names_and_passwords_log_in_and_wrong_ones_do_not(
    mechanism: ScramMechanism, user: str, password: str, random_bytes: bytes
) -> None:
    users = {user: _credential(mechanism, password)}
    for attempt in (password, password + " "):
        client = ScramClient(mechanism, user, attempt, nonce_text(random_bytes))
        server = ScramServer(mechanism, users.get, DECOYS, nonce_text(random_bytes[::-1]))
        challenge = server.step(client.first(), 0)
        assert isinstance(challenge, Challenge)
        work = client.on_server_first(challenge.token)
        answer = server.step(client.final(work.run()), 0)
        if attempt == password:
            assert isinstance(answer, Accepted)
            assert answer.principal == user
            client.on_server_final(answer.token)
        else:
            assert answer == Rejected("the password is wrong", user)


@given(st.binary(max_size=200))
def test_any_bytes_of_a_broker_are_refused_with_our_own_error(message: bytes) -> None:
    with pytest.raises(ScramFailed):
        _client().on_server_first(message)
    with pytest.raises(ScramFailed):
        _client().on_server_final(message)


@pytest.mark.parametrize(
    ("text", "prepared"),
    [
        ("I\u00adX", "IX"),
        ("user", "user"),
        ("USER", "USER"),
        ("\u00aa", "a"),
        ("\u2168", "IX"),
        ("a\u00a0b", "a b"),
        ("", ""),
    ],
)
def test_saslprep_follows_the_examples_of_rfc_4013(text: str, prepared: str) -> None:
    assert saslprep(text) == prepared


@pytest.mark.parametrize(
    "text", ["\u0007", "\u0627\u0031", "\u0031\u0627", "a\u0627", "\ue000", "\ufffd"]
)
def test_saslprep_refuses_prohibited_text(text: str) -> None:
    with pytest.raises(PasswordUnfit):
        saslprep(text)


@pytest.mark.parametrize("password", ["correct horse", "p=a,ss", "zoë", "😀", "\u0627\u0628"])
def test_passwords_that_all_clients_send_alike_may_be_set(password: str) -> None:
    check_new_password(password)


@pytest.mark.parametrize("password", ["", "zoe\u0308", "a\u00a0b", "I\u00adX", "tab\t", "\ud800"])
def test_passwords_that_clients_send_differently_may_not_be_set(password: str) -> None:
    with pytest.raises(PasswordUnfit) as raised:
        check_new_password(password)
    assert not password or password not in str(raised.value)


@given(_PASSWORDS)
def test_a_prepared_text_stays_the_same_when_prepared_again(text: str) -> None:
    try:
        prepared = saslprep(text)
    except PasswordUnfit:
        return
    assert saslprep(prepared) == prepared
