"""PLAIN on the broker, and Kafka's `sasl.jaas.config`."""

from __future__ import annotations

from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.security.decoys import CredentialClass, Decoys
from penstock.security.exchange import Accepted, Exchange, PasswordHash, Rejected, Step, Wait
from penstock.security.plain import (
    JAAS_CHARS_MAX,
    MESSAGE_BYTES_MAX,
    JaasInvalid,
    PlainScramServer,
    PlainTableServer,
    PlainUsers,
    client_message,
    jaas_entry,
    plain_users,
    users_table,
)
from penstock.security.scram_credentials import (
    PASSWORD_BYTES_MAX,
    ScramCredential,
    ScramMechanism,
    from_salted_password,
    password_hash,
)
from penstock.security.user_names import name_problem

DECOYS = Decoys(b"a secret of the cluster")
SALT = b"salt of the user"
TABLE = users_table({"alice": "wonder", "zoë": "p=a,ss"}, bytes(32))


def _credential(password: str, mechanism: ScramMechanism) -> ScramCredential:
    salted = password_hash(mechanism, password, SALT, 4096).run()
    return from_salted_password(mechanism, salted, SALT, 4096)


USERS = {
    "alice": _credential("wonder", ScramMechanism.SHA_512),
    "zoë": _credential("p=a,ss", ScramMechanism.SHA_256),
}


def _both() -> list[Exchange]:
    return [PlainTableServer(TABLE), PlainScramServer(USERS.get, DECOYS)]


def _finish(exchange: Exchange, message: bytes) -> Step:
    step = exchange.step(message, 0)
    if isinstance(step, Wait):
        assert isinstance(step.work, PasswordHash)
        step = exchange.resume(step.work.run(), 0)
    return step


@pytest.mark.parametrize(
    ("message", "user"),
    [
        (b"\0alice\0wonder", "alice"),
        (b"alice\0alice\0wonder", "alice"),
        ("\0zoë\0p=a,ss".encode(), "zoë"),
    ],
)
def test_a_user_with_the_right_password_is_accepted(message: bytes, user: str) -> None:
    for exchange in _both():
        assert _finish(exchange, message) == Accepted(user)


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"alice",
        b"\0",
        b"\0\0",
        b"alice\0wonder",
        b"\0alice\0",
        b"\0\0wonder",
        b"\0alice\0wonder\0",
        b"\0\0alice\0wonder",
        b"\0alice\0wonderful",
        b"\0alice\0Wonder",
        b"\0alice\0wonde",
        b"\0ALICE\0wonder",
        b"\0nobody\0wonder",
        b"zo\0alice\0wonder",
        b"alice \0alice\0wonder",
        b"\0\xff\0wonder",
        b"\0alice\0\xff",
        b"\0*\0wonder",
        b"\0ANONYMOUS\0wonder",
        b"\0alice \0wonder",
        b"\0 alice\0wonder",
        b"\0ali\nce\0wonder",
        b"\0alice\x1b[2J\0wonder",
        b"\0alice\0" + b"x" * (PASSWORD_BYTES_MAX + 1),
        b"\0" + b"x" * 256 + b"\0wonder",
        b"x" * (MESSAGE_BYTES_MAX + 1),
    ],
)
def test_every_other_message_is_rejected(message: bytes) -> None:
    for exchange in _both():
        answer = _finish(exchange, message)
        assert isinstance(answer, Rejected)
        assert "wonder" not in repr(answer)
        again = _finish(exchange, b"\0alice\0wonder")
        assert isinstance(again, Rejected), "there is one attempt"


@pytest.mark.parametrize("name", ["*", "ANONYMOUS", " alice", "alice ", "al\nice", "\x1b[2J"])
def test_a_stored_password_does_not_help_a_name_that_no_user_may_have(name: str) -> None:
    everyone = PlainUsers(TABLE.secret, {name: TABLE.digests["alice"]})
    scram = PlainScramServer(lambda _: USERS["alice"], DECOYS)
    for exchange in (PlainTableServer(everyone), scram):
        answer = _finish(exchange, b"\0%b\0wonder" % name.encode())
        assert isinstance(answer, Rejected)
        assert answer.reason.isprintable()


def test_an_unknown_user_needs_the_work_of_its_decoy() -> None:
    classes = (
        CredentialClass(ScramMechanism.SHA_256, 4096, None, plain_weight=1),
        CredentialClass(ScramMechanism.SHA_512, 8192, 32, plain_weight=1),
    )
    works = set()
    for user in map(str, range(50)):
        step = PlainScramServer(USERS.get, Decoys(b"a secret of the cluster", classes)).step(
            b"\0%b\0x" % user.encode(), 0
        )
        assert isinstance(step, Wait)
        assert isinstance(step.work, PasswordHash)
        works.add((step.work.hash_name, step.work.iterations))
    assert works == {("sha256", 4096), ("sha512", 8192)}


def test_an_unknown_user_needs_the_same_work_as_a_known_one() -> None:
    works = []
    for message in (b"\0alice\0secret", b"\0nobody\0secret"):
        exchange = PlainScramServer(USERS.get, DECOYS)
        step = exchange.step(message, 0)
        assert isinstance(step, Wait)
        assert isinstance(step.work, PasswordHash)
        assert "secret" not in repr(step)
        works.append((step.work.hash_name, step.work.iterations, len(step.work.password)))
        answer = exchange.resume(step.work.run(), 0)
        assert isinstance(answer, Rejected)
        assert answer.reason == "the user is unknown or the password is wrong"
    assert works[0] == works[1]


def test_a_password_that_fits_an_unknown_user_is_rejected() -> None:
    class Guessed:
        def plain_credential(self, user: str) -> ScramCredential:
            return USERS["alice"]

    exchange = PlainScramServer(USERS.get, cast(Decoys, Guessed()))
    assert isinstance(_finish(exchange, b"\0nobody\0wonder"), Rejected)


def test_work_that_fails_rejects_the_client() -> None:
    exchange = PlainScramServer(USERS.get, DECOYS)
    step = exchange.step(b"\0alice\0wonder", 0)
    assert isinstance(step, Wait)
    assert isinstance(step.work, PasswordHash)
    assert isinstance(exchange.resume(None, 0), Rejected)
    assert isinstance(exchange.resume(step.work.run(), 0), Rejected), "it is over"


def test_a_second_message_ends_an_exchange_that_waits() -> None:
    exchange = PlainScramServer(USERS.get, DECOYS)
    step = exchange.step(b"\0alice\0wonder", 0)
    assert isinstance(step, Wait)
    assert isinstance(step.work, PasswordHash)
    assert isinstance(exchange.step(b"\0alice\0wonder", 0), Rejected)
    assert isinstance(exchange.resume(step.work.run(), 0), Rejected)


def test_an_exchange_cannot_be_resumed_before_it_waits() -> None:
    for exchange in _both():
        assert isinstance(exchange.resume(bytes(64), 0), Rejected)
        assert isinstance(_finish(exchange, b"\0alice\0wonder"), Rejected)


_TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=30)
_NAMES = _TEXTS.filter(lambda name: name_problem(name) is None)


@settings(max_examples=30, deadline=None)
@given(_NAMES, _TEXTS)
def test_what_our_client_sends_is_accepted(user: str, password: str) -> None:
    users = {user: _credential(password, ScramMechanism.SHA_256)}
    table = PlainTableServer(users_table({user: password}, bytes(32)))
    for exchange in (table, PlainScramServer(users.get, DECOYS)):
        assert _finish(exchange, client_message(user, password)) == Accepted(user)


@given(st.binary(max_size=100))
def test_any_bytes_are_rejected_without_an_error(message: bytes) -> None:
    exchange = PlainTableServer(users_table({}, bytes(32)))
    assert isinstance(exchange.step(message, 0), Rejected)


@pytest.mark.parametrize(
    ("user", "password"), [("", "x"), ("a\0", "x"), ("a", ""), ("a", "b\0c"), ("a", "\ud800")]
)
def test_our_client_refuses_what_plain_cannot_send(user: str, password: str) -> None:
    with pytest.raises(ValueError, match=r"empty|printed|NUL|Unicode|0 bytes"):
        client_message(user, password)


def test_the_table_does_not_show_passwords() -> None:
    assert repr(TABLE) == "PlainUsers()"
    assert b"wonder" not in b"".join(TABLE.digests.values())
    with pytest.raises(ValueError, match="32 bytes"):
        users_table({}, b"short")
    with pytest.raises(JaasInvalid, match="empty"):
        users_table({"": "x"}, bytes(32))
    with pytest.raises(JaasInvalid, match="every user"):
        users_table({"*": "x"}, bytes(32))


def test_the_users_of_a_jaas_text_are_read() -> None:
    jaas = """
        org.apache.kafka.common.security.plain.PlainLoginModule required
            username="admin" // the broker itself
            password="admin-secret" /* and
            more */ user_admin="admin-secret"
            user_alice='it\\'s "here"; user_x=y'
            user_bob=simple user_carol="back\\\\slash\\tand \\101\\60\\400";
    """
    assert plain_users(jaas) == {
        "admin": "admin-secret",
        "alice": 'it\'s "here"; user_x=y',
        "bob": "simple",
        "carol": "back\\slash\tand A0 0",
    }
    entry = jaas_entry(jaas)
    assert entry.module.endswith(".PlainLoginModule")
    assert entry.options["username"] == "admin"
    assert "secret" not in repr(entry)


@pytest.mark.parametrize(
    ("jaas", "problem"),
    [
        ("", "login module"),
        ("Module required", "login module"),
        ("Module;", "login module"),
        ("Module never user_a=hunter2;", "flag"),
        ("Module required user_a=hunter2", "semicolon"),
        ("Module required user_a=;", "name=value"),
        ("Module required user_a hunter2;", "name=value"),
        ("Module required =hunter2 user_a=b;", "name=value"),
        ("Module required user_a=hunter2; Other required user_b=x;", "one login module"),
        ("Module required user_a=hunter2 user_a=hunter2;", "repeats"),
        ('Module required user_a="hunter2;', "closing quote"),
        ('Module required user_a="hunter2\n";', "closing quote"),
        ('Module required user_a="hunter2\\', "closing quote"),
        ("Module required /* user_a=hunter2;", "no end"),
        ('Module required user_a="";', "0 bytes"),
        ('Module required user_a="hunter2\\0";', "NUL"),
        (" " * (JAAS_CHARS_MAX + 1), "shorten"),
    ],
)
def test_a_jaas_text_that_cannot_be_read_is_refused(jaas: str, problem: str) -> None:
    with pytest.raises(JaasInvalid, match=problem) as raised:
        plain_users(jaas)
    assert "hunter2" not in str(raised.value)


@given(st.dictionaries(st.from_regex(r"\A[a-z][a-z0-9.@-]*\Z"), _TEXTS, max_size=5))
def test_quoted_passwords_are_read_as_they_are(users: dict[str, str]) -> None:
    options = " ".join(f'user_{user}="{_escape(password)}"' for user, password in users.items())
    assert plain_users(f"Module required {options};") == users


def _escape(password: str) -> str:
    text = password.replace("\\", "\\\\").replace('"', '\\"')
    return text.replace("\n", "\\n").replace("\r", "\\r")


@given(st.text())
def test_any_text_is_read_or_refused(jaas: str) -> None:
    for text in (jaas, f"Module required {jaas};"):
        try:
            found = plain_users(text)
        except JaasInvalid:
            continue
        assert all(found.values())
