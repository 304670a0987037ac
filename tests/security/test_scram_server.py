"""SCRAM on the broker: RFC vectors, hostile clients, other projects' clients."""

from __future__ import annotations

import base64
import hashlib
import hmac
import warnings
from typing import cast

import pytest
from aiokafka.conn import ScramAuthenticator
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.security.decoys import Decoys
from penstock.security.exchange import Accepted, Challenge, Rejected
from penstock.security.scram import (
    MESSAGE_BYTES_MAX,
    NONCE_CHARS_MAX,
    ScramServer,
    nonce_text,
)
from penstock.security.scram_credentials import (
    ScramCredential,
    ScramMechanism,
    from_salted_password,
)

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # kafka-python's use of importlib
    from kafka.net.sasl.scram import ScramClient as KafkaPythonClient

SALT = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
CLIENT_NONCE = b"rOprNGfwEbeRWgbNEkqO"
SERVER_NONCE = b"%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
"""From the example of RFC 7677."""

DECOYS = Decoys(b"a secret of the cluster")
SHA_256, SHA_512 = ScramMechanism


def _credential(password: str, mechanism: ScramMechanism = SHA_256) -> ScramCredential:
    salted = hashlib.pbkdf2_hmac(mechanism.hash_name, password.encode(), SALT, 4096)
    return from_salted_password(mechanism, salted, SALT, 4096)


PENCIL = _credential("pencil")
USERS = {"*": PENCIL, "user": PENCIL, "a,b=c": PENCIL, "zoë": PENCIL}


def _server(nonce: bytes = SERVER_NONCE) -> ScramServer:
    return ScramServer(SHA_256, USERS.get, DECOYS, nonce)


def _begin(first: bytes, server: ScramServer | None = None) -> tuple[ScramServer, bytes]:
    server = server or _server()
    answer = server.step(first, 0)
    assert isinstance(answer, Challenge), answer
    return server, answer.token


def _final(
    bare: bytes,
    server_first: bytes,
    *,
    binding: bytes = b"n,,",
    nonce: bytes | None = None,
    password: bytes = b"pencil",
    extensions: bytes = b"",
) -> bytes:
    """Returns the last message of a client, by the formulas of RFC 5802."""
    fields = dict(part.split(b"=", 1) for part in server_first.split(b","))
    salted = hashlib.pbkdf2_hmac(
        "sha256", password, base64.b64decode(fields[b"s"]), int(fields[b"i"])
    )
    key = hmac.digest(salted, b"Client Key", "sha256")
    without = b"c=%b,r=%b%b" % (base64.b64encode(binding), nonce or fields[b"r"], extensions)
    message = b",".join((bare, server_first, without))
    signature = hmac.digest(hashlib.sha256(key).digest(), message, "sha256")
    proof = bytes(a ^ b for a, b in zip(key, signature, strict=True))
    return without + b",p=" + base64.b64encode(proof)


def test_the_server_plays_its_part_in_the_example_of_rfc_7677() -> None:
    server, challenge = _begin(b"n,,n=user,r=" + CLIENT_NONCE)
    nonce = CLIENT_NONCE + SERVER_NONCE
    assert challenge == b"r=%b,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096" % nonce
    answer = server.step(b"c=biws,r=%b,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=" % nonce, 0)
    assert answer == Accepted("user", b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=")


@pytest.mark.parametrize(
    ("header", "name", "user"),
    [
        (b"n,,", b"user", "user"),
        (b"y,,", b"user", "user"),
        (b"n,a=user,", b"user", "user"),
        (b"n,a=a=2Cb=3Dc,", b"a=2Cb=3Dc", "a,b=c"),
        (b"n,,", "zoë".encode(), "zoë"),
    ],
)
def test_names_and_headers_that_the_rfc_allows_are_accepted(
    header: bytes, name: bytes, user: str
) -> None:
    bare = b"n=%b,r=abc" % name
    server, challenge = _begin(header + bare)
    answer = server.step(_final(bare, challenge, binding=header), 0)
    assert isinstance(answer, Accepted)
    assert answer.principal == user
    assert answer.expires_at_ms is None


def test_optional_extensions_are_part_of_the_signed_message() -> None:
    bare = b"n=user,r=abc,x=1"
    server, challenge = _begin(b"n,," + bare)
    answer = server.step(_final(bare, challenge, extensions=b",y=2=3"), 0)
    assert isinstance(answer, Accepted)


@pytest.mark.parametrize(
    "first",
    [
        b"",
        b"n",
        b"n,,",
        b"n,,n=user",
        b"n,,r=abc,n=user",
        b"n,,n=,r=abc",
        b"n,,n=user,r=",
        b"n,,n=us\0er,r=abc",
        b"n,,n=\xff\xfe,r=abc",
        b"n,,n=*,r=abc",
        b"n,,n=ANONYMOUS,r=abc",
        b"n,,n= user,r=abc",
        b"n,,n=user ,r=abc",
        b"n,,n=us\ner,r=abc",
        b"n,,n=us\x1b[2Jer,r=abc",
        b"n,,n=a=2cb,r=abc",
        b"n,,n=a=,r=abc",
        b"n,,n=a=b,r=abc",
        b"n,,n=user,r=a b",
        b"n,,n=user,r=\xc3\xa4",
        b"n,,n=user,r=abc,",
        b"n,,n=user,r=abc,1=2",
        b"n,,n=user,r=abc,x",
        b"n,,m=ext,n=user,r=abc",
        b"n,,n=user,r=abc,m=ext",
        b"n,,n=user,r=abc,tokenauth=true",
        b"p=tls-unique,,n=user,r=abc",
        b"x,,n=user,r=abc",
        b"n,user,n=user,r=abc",
        b"n,a=,n=user,r=abc",
        b"n,a=other,n=user,r=abc",
        b"n,a=user=2C,n=user,r=abc",
        b"n,,n=user,r=" + b"x" * (NONCE_CHARS_MAX + 1),
        b"n,,n=" + b"x" * 256 + b",r=abc",
        b"n,,n=user,r=abc,x=" + b"y" * MESSAGE_BYTES_MAX,
    ],
)
def test_a_first_message_that_breaks_the_rules_ends_the_exchange(first: bytes) -> None:
    server = _server()
    assert isinstance(server.step(first, 0), Rejected)
    assert isinstance(server.step(b"n,,n=user,r=abc", 0), Rejected), "it must not begin again"


def test_a_last_message_that_breaks_the_rules_is_rejected() -> None:
    bare = b"n=user,r=abc"
    _, challenge = _begin(b"n,," + bare)
    good = _final(bare, challenge)
    without = good[: good.index(b",p=")]
    combined = challenge[2 : challenge.index(b",")]
    bad = {
        "no proof": without,
        "an empty proof": without + b",p=",
        "a short proof": without + b",p=AAAA",
        "a proof of zeros": without + b",p=" + base64.b64encode(bytes(32)),
        "a proof that is not base64": without + b",p=%%%%",
        "something after the proof": good + b",x=1",
        "a mandatory extension": _final(bare, challenge, extensions=b",m=1"),
        "the client's nonce alone": _final(bare, challenge, nonce=b"abc"),
        "a longer nonce": _final(bare, challenge, nonce=combined + b"x"),
        "another header": _final(bare, challenge, binding=b"y,,"),
        "a header with a user": _final(bare, challenge, binding=b"n,a=user,"),
        "a wrong password": _final(bare, challenge, password=b"pencil2"),
        "the first message again": b"n,," + bare,
        "nothing": b"",
    }
    for what, final in bad.items():
        server, again = _begin(b"n,," + bare)
        assert again == challenge
        assert isinstance(server.step(final, 0), Rejected), what
        assert isinstance(server.step(good, 0), Rejected), f"{what}, then a good message"
    server, _ = _begin(b"n,," + bare)
    assert isinstance(server.step(good, 0), Accepted)


def test_a_recorded_login_cannot_be_replayed() -> None:
    bare = b"n=user,r=abc"
    server, challenge = _begin(b"n,," + bare)
    final = _final(bare, challenge)
    assert isinstance(server.step(final, 0), Accepted)
    assert isinstance(server.step(final, 0), Rejected)
    fresh, other = _begin(b"n,," + bare, _server(nonce_text(bytes(24))))
    assert other != challenge
    assert isinstance(fresh.step(final, 0), Rejected)


def test_an_exchange_that_does_not_wait_cannot_be_resumed() -> None:
    bare = b"n=user,r=abc"
    server, challenge = _begin(b"n,," + bare)
    assert isinstance(server.resume(b"", 0), Rejected)
    assert isinstance(server.step(_final(bare, challenge), 0), Rejected)


def test_an_unknown_user_sees_the_same_steps_as_a_wrong_password() -> None:
    for name in (b"user", b"nobody"):
        bare = b"n=%b,r=abc" % name
        server, challenge = _begin(b"n,," + bare)
        fields = dict(part.split(b"=", 1) for part in challenge.split(b","))
        assert [*fields] == [b"r", b"s", b"i"]
        assert fields[b"i"] == b"4096"
        answer = server.step(_final(bare, challenge, password=b"wrong"), 0)
        assert isinstance(answer, Rejected)
        assert answer.claimed == name.decode()


def test_the_salt_of_an_unknown_user_stays_and_differs_from_others() -> None:
    def salt(name: bytes, decoys: Decoys = DECOYS, mechanism: ScramMechanism = SHA_256) -> bytes:
        server = ScramServer(mechanism, USERS.get, decoys, SERVER_NONCE)
        _, challenge = _begin(b"n,,n=%b,r=abc" % name, server)
        return challenge.split(b",s=")[1]

    assert salt(b"nobody") == salt(b"nobody")
    assert len({salt(b"nobody%d" % each) for each in range(50)}) == 50
    assert salt(b"nobody") != salt(b"nobody", Decoys(b"another secret 1"))
    assert salt(b"nobody") != salt(b"nobody", mechanism=SHA_512)


def test_a_user_without_a_password_for_this_mechanism_is_unknown() -> None:
    server = ScramServer(SHA_512, USERS.get, DECOYS, SERVER_NONCE)
    _, challenge = _begin(b"n,,n=user,r=abc", server)
    assert base64.b64encode(SALT) not in challenge


def test_a_proof_made_with_the_keys_of_an_unknown_user_is_rejected() -> None:
    """Even a client that finds a password for a decoy cannot log in as that user."""

    class Guessed:
        def credential(self, mechanism: ScramMechanism, user: str) -> ScramCredential:
            return PENCIL

    decoys = cast(Decoys, Guessed())
    bare = b"n=nobody,r=abc"
    server = ScramServer(SHA_256, USERS.get, decoys, SERVER_NONCE)
    _, challenge = _begin(b"n,," + bare, server)
    assert isinstance(server.step(_final(bare, challenge), 0), Rejected)


def test_nonces_are_too_long_to_guess() -> None:
    for nonce in (b"short", b"nineteen characters", b"x" * 20 + b",", b"x" * 20 + b" "):
        with pytest.raises(ValueError, match="can be guessed"):
            _server(nonce)


def test_no_answer_shows_the_credential_in_its_text() -> None:
    bare = b"n=user,r=abc"
    server, challenge = _begin(b"n,," + bare)
    answer = server.step(_final(bare, challenge, password=b"hunter2"), 0)
    assert "hunter2" not in repr(answer)
    assert PENCIL.stored_key.hex() not in repr(PENCIL)
    assert repr(PENCIL) == f"ScramCredential(mechanism={SHA_256!r}, iterations=4096)"


@given(st.binary(max_size=100))
def test_any_bytes_as_first_message_are_answered(first: bytes) -> None:
    for message in (first, b"n,," + first, b"n,,n=user,r=" + first):
        assert isinstance(_server().step(message, 0), Challenge | Rejected)


@given(st.binary(max_size=100))
def test_any_bytes_as_last_message_are_rejected(final: bytes) -> None:
    nonce = b"abc" + SERVER_NONCE
    for message in (final, b"c=biws,r=%b,p=" % nonce + final):
        server, _ = _begin(b"n,,n=user,r=abc")
        assert isinstance(server.step(message, 0), Rejected)


_BARE = b"n=user,r=abc"
_FINAL = _final(_BARE, _begin(b"n,," + _BARE)[1])


def test_a_last_message_with_one_changed_bit_is_rejected() -> None:
    for bit in range(len(_FINAL) * 8):
        changed = bytearray(_FINAL)
        changed[bit // 8] ^= 1 << bit % 8
        server, _ = _begin(b"n,," + _BARE)
        assert isinstance(server.step(bytes(changed), 0), Rejected), bit


_MECHANISMS = st.sampled_from([*ScramMechanism])
_NAMES = st.text(st.characters(codec="ascii", categories=("L", "N", "S")), min_size=1, max_size=30)
_PASSWORDS = st.text(st.characters(codec="utf-8"), min_size=1, max_size=30)


@settings(max_examples=30, deadline=None)
@given(_MECHANISMS, _NAMES.map(lambda name: name.replace("=", "")), _PASSWORDS)
def test_the_client_of_kafka_python_logs_in(
    mechanism: ScramMechanism, name: str, password: str
) -> None:
    user = name + "x"
    users = {user: _credential(password, mechanism)}
    for attempt in (password, password + "!"):
        client = KafkaPythonClient(user, attempt, mechanism.sasl_name)
        server = ScramServer(mechanism, users.get, DECOYS, SERVER_NONCE)
        _, challenge = _begin(client.first_message(), server)
        client.process_server_first_message(challenge)
        answer = server.step(client.final_message(), 0)
        if attempt == password:
            assert isinstance(answer, Accepted)
            assert answer.principal == user
            client.process_server_final_message(answer.token)
        else:
            assert answer == Rejected("the password is wrong", user)


@settings(max_examples=30, deadline=None)
@given(_MECHANISMS, st.text(st.sampled_from("ab,=2C3Dü"), min_size=1, max_size=9), _PASSWORDS)
def test_the_client_of_aiokafka_logs_in(
    mechanism: ScramMechanism, user: str, password: str
) -> None:
    client = ScramAuthenticator(
        loop=None,
        sasl_plain_password=password,
        sasl_plain_username=user,
        sasl_mechanism=mechanism.sasl_name,
    )
    users = {user: _credential(password, mechanism)}
    server = ScramServer(mechanism, users.get, DECOYS, SERVER_NONCE)
    _, challenge = _begin(client.first_message().encode(), server)
    client.process_server_first_message(challenge.decode())
    answer = server.step(client.final_message().encode(), 0)
    assert isinstance(answer, Accepted)
    assert answer.principal == user
    client.process_server_final_message(answer.token.decode())
