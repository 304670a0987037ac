"""The messages of OAUTHBEARER, and what the broker answers."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.security.exchange import (
    NAME_BYTES_MAX,
    Accepted,
    Challenge,
    KeyFetch,
    Rejected,
    Step,
    Wait,
)
from penstock.security.oauthbearer import (
    ACKNOWLEDGEMENT,
    EXTENSIONS_MAX,
    INVALID_TOKEN,
    MESSAGE_BYTES_MAX,
    OAuthBearerClient,
    OAuthBearerExchange,
    client_message,
)
from penstock.security.token_verdict import KeyUnknown, TokenAccepted, TokenRejected, TokenVerdict
from penstock.security.tokens import NO_KEYS, KeySet, TokenChecker

from .signed_tokens import ACCEPTED, CLAIMS, NOW_MS, RULES, good_keys, good_token, make

TOKEN = b"aa.bb.cc"
MESSAGE = b"n,,\x01auth=Bearer aa.bb.cc\x01\x01"


def exchange(verdict: TokenVerdict = ACCEPTED) -> tuple[OAuthBearerExchange, list[bytes]]:
    """Returns an exchange whose check has this verdict, and the tokens that were checked."""
    checked: list[bytes] = []

    def check(token: bytes, now_ms: int) -> TokenVerdict:
        assert now_ms == NOW_MS
        checked.append(token)
        return verdict

    return OAuthBearerExchange(check), checked


def first(message: bytes, verdict: TokenVerdict = ACCEPTED) -> Step:
    return exchange(verdict)[0].step(message, NOW_MS)


def checks_with(keys: KeySet) -> Callable[[bytes, int], TokenVerdict]:
    return lambda token, now_ms: TokenChecker(RULES).check(token, keys, now_ms)


def rejected(step: Step) -> str:
    assert isinstance(step, Rejected), step
    return step.reason


def test_a_signed_token_is_accepted() -> None:
    """With a real checker and the message of a real client."""
    server = OAuthBearerExchange(checks_with(good_keys()))
    client = OAuthBearerClient(good_token().decode())
    answer = server.step(client.first(), NOW_MS)
    assert answer == Accepted("alice", b"", ACCEPTED.expires_at_ms)
    assert client.answer(b"") is None


def test_a_refused_token_gets_an_error_that_the_client_acknowledges() -> None:
    server = OAuthBearerExchange(checks_with(good_keys()))
    client = OAuthBearerClient(make({**CLAIMS, "aud": "other"}).decode())
    answer = server.step(client.first(), NOW_MS)
    assert answer == Challenge(INVALID_TOKEN)
    assert json.loads(INVALID_TOKEN) == {"status": "invalid_token"}
    acknowledged = client.answer(INVALID_TOKEN)
    assert acknowledged == ACKNOWLEDGEMENT == b"\x01"
    assert "audience" in rejected(server.step(acknowledged, NOW_MS))


@pytest.mark.parametrize("second", [ACKNOWLEDGEMENT, b"", MESSAGE, b"x"])
def test_after_an_error_no_message_is_accepted(second: bytes) -> None:
    """A client cannot try another token in the same exchange."""
    server, checked = exchange(TokenRejected("expired"))
    assert server.step(MESSAGE, NOW_MS) == Challenge(INVALID_TOKEN)
    assert rejected(server.step(second, NOW_MS)) == "expired"
    assert "out of turn" in rejected(server.step(MESSAGE, NOW_MS))
    assert checked == [TOKEN]


def test_an_exchange_accepts_once() -> None:
    server, checked = exchange()
    assert server.step(MESSAGE, NOW_MS) == Accepted("alice", b"", ACCEPTED.expires_at_ms)
    assert "out of turn" in rejected(server.step(MESSAGE, NOW_MS))
    assert "not waiting" in rejected(server.resume(b"", NOW_MS))
    assert checked == [TOKEN]


def test_an_unknown_key_is_fetched_and_the_token_is_checked_again() -> None:
    keys = NO_KEYS
    server = OAuthBearerExchange(lambda token, now: TokenChecker(RULES).check(token, keys, now))
    message = client_message(good_token().decode())
    assert server.step(message, NOW_MS) == Wait(KeyFetch("k1"))
    keys = good_keys()
    assert isinstance(server.resume(b"", NOW_MS), Accepted)


def test_a_key_that_stays_unknown_is_an_invalid_token() -> None:
    """There is one fetch for each exchange, and a broker without keys accepts nobody."""
    for result in (b"", None):
        server, _ = exchange(KeyUnknown("k1"))
        assert server.step(MESSAGE, NOW_MS) == Wait(KeyFetch("k1"))
        assert server.resume(result, NOW_MS) == Challenge(INVALID_TOKEN)
        assert "key" in rejected(server.step(ACKNOWLEDGEMENT, NOW_MS))
        assert "not waiting" in rejected(server.resume(b"", NOW_MS))


def test_a_message_during_the_fetch_ends_the_exchange() -> None:
    server, _ = exchange(KeyUnknown("k1"))
    server.step(MESSAGE, NOW_MS)
    assert "out of turn" in rejected(server.step(MESSAGE, NOW_MS))
    assert "not waiting" in rejected(server.resume(b"", NOW_MS))


def test_an_exchange_that_does_not_wait_is_not_resumed() -> None:
    server, checked = exchange()
    assert "not waiting" in rejected(server.resume(b"", NOW_MS))
    assert "out of turn" in rejected(server.step(MESSAGE, NOW_MS))
    assert checked == []


@pytest.mark.parametrize(
    "message",
    [
        MESSAGE,
        b"n,,\x01auth=bearer aa.bb.cc\x01\x01",
        b"n,,\x01auth=BEARER   aa.bb.cc\x01\x01",
        b"n,a=alice,\x01auth=Bearer aa.bb.cc\x01\x01",
        b"n,,\x01logicalCluster=lkc-1\x01auth=Bearer aa.bb.cc\x01pool=a b\t\r\n=c\x01\x01",
    ],
)
def test_the_token_of_a_message_is_found(message: bytes) -> None:
    server, checked = exchange()
    assert isinstance(server.step(message, NOW_MS), Accepted)
    assert checked == [TOKEN]


def test_a_client_may_name_only_the_user_of_its_token() -> None:
    for name in ("bob", "Alice", "alice x", "ali=2Cce"):
        message = f"n,a={name},\x01auth=Bearer aa.bb.cc\x01\x01".encode()
        answer = first(message)
        assert "another user" in rejected(answer)
        assert isinstance(answer, Rejected)
        assert answer.claimed == name.replace("=2C", ",")


@pytest.mark.parametrize(
    ("name", "principal"), [("a=2Cb=3Dc", "a,b=c"), ("=3D2C", "=2C"), ("jürg", "jürg")]
)
def test_names_are_unescaped_once(name: str, principal: str) -> None:
    message = f"n,a={name},\x01auth=Bearer aa.bb.cc\x01\x01".encode()
    assert isinstance(first(message, TokenAccepted(principal, 1)), Accepted)


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"\x01",
        b"n,,",
        b"n,,\x01",
        b"n,,\x01\x01",
        MESSAGE[:-1],
        MESSAGE + b"\x01",
        MESSAGE + b"x",
        b"y,,\x01auth=Bearer aa.bb.cc\x01\x01",
        b"p=tls-unique,,\x01auth=Bearer aa.bb.cc\x01\x01",
        b"n\x01auth=Bearer aa.bb.cc\x01\x01",
        b"n,\x01auth=Bearer aa.bb.cc\x01\x01",
        b"n,a=,\x01auth=Bearer aa.bb.cc\x01\x01",
        b"n,alice,\x01auth=Bearer aa.bb.cc\x01\x01",
        b"n,a=x=2Cy=3,\x01auth=Bearer aa.bb.cc\x01\x01",
        b"n,a=x,y,\x01auth=Bearer aa.bb.cc\x01\x01",
        b"n,a=\xff,\x01auth=Bearer aa.bb.cc\x01\x01",
        b"n,a=x\x00,\x01auth=Bearer aa.bb.cc\x01\x01",
        b"n,a=x\n,\x01auth=Bearer aa.bb.cc\x01\x01",
        b"n,a=*,\x01auth=Bearer aa.bb.cc\x01\x01",
        b"n,a=ANONYMOUS,\x01auth=Bearer aa.bb.cc\x01\x01",
        b"n,a=alice ,\x01auth=Bearer aa.bb.cc\x01\x01",
        b"n,a=" + b"x" * (NAME_BYTES_MAX + 1) + b",\x01auth=Bearer aa.bb.cc\x01\x01",
        b"n,,\x01auth=Basic aa.bb.cc\x01\x01",
        b"n,,\x01auth=Bearer\x01\x01",
        b"n,,\x01auth=Bearer \x01\x01",
        b"n,,\x01auth=Beareraa.bb.cc\x01\x01",
        b"n,,\x01auth=Bearer aa.bb.cc \x01\x01",
        b"n,,\x01auth=Bearer aa.bb.cc\n\x01\x01",
        b"n,,\x01auth=Bearer aa bb\x01\x01",
        b"n,,\x01Auth=Bearer aa.bb.cc\x01\x01",
        b"n,,\x01auth=Bearer aa.bb.cc\x01auth=Bearer dd.ee.ff\x01\x01",
        b"n,,\x01auth=Bearer aa.bb.cc\x01k\x01\x01",
        b"n,,\x01auth=Bearer aa.bb.cc\x01k=\x01\x01",
        b"n,,\x01auth=Bearer aa.bb.cc\x01k1=v\x01\x01",
        b"n,,\x01auth=Bearer aa.bb.cc\x01k=\xff\x01\x01",
        b"n,,\x01auth=Bearer aa.bb.cc\x01k=v\x01k=w\x01\x01",
    ],
)
def test_a_message_that_cannot_be_read_ends_the_exchange(message: bytes) -> None:
    server, checked = exchange()
    assert "message" in rejected(server.step(message, NOW_MS))
    assert "out of turn" in rejected(server.step(MESSAGE, NOW_MS))
    assert checked == []


def letters(number: int) -> str:
    return "".join("abcdefghij"[int(digit)] for digit in str(number))


def test_long_messages_are_refused_unread() -> None:
    longest = b"n,,\x01auth=Bearer " + b"a" * (MESSAGE_BYTES_MAX - 18) + b"\x01\x01"
    assert len(longest) == MESSAGE_BYTES_MAX
    assert isinstance(first(longest), Accepted)
    assert str(MESSAGE_BYTES_MAX) in rejected(first(longest[:20] + b"a" + longest[20:]))
    assert "1048576 bytes" in rejected(first(b"\x01" * (1 << 20)))


def test_the_number_of_extensions_is_limited() -> None:
    most = {letters(at): "v" for at in range(EXTENSIONS_MAX)}
    assert isinstance(first(client_message("aa.bb.cc", most)), Accepted)
    with pytest.raises(ValueError, match="extensions"):
        client_message("aa.bb.cc", {**most, "more": "v"})
    assert "extensions" in rejected(first(b"n,,\x01" + b"k=v\x01" * 5000 + b"\x01"))


def test_the_message_of_a_client_is_kafkas() -> None:
    assert client_message("aa.bb.cc") == MESSAGE
    made = client_message("aa.bb.cc", {"pool": "p 1", "cluster": "c"})
    assert made == b"n,,\x01auth=Bearer aa.bb.cc\x01pool=p 1\x01cluster=c\x01\x01"


@pytest.mark.parametrize(
    ("token", "extensions"),
    [
        ("", {}),
        ("s3cret token", {}),
        ("s3cret\x01", {}),
        ("s3crét", {}),
        ("s3cret\ud800", {}),
        ("s3cret", {"k": "s3cret\ud800"}),
        ("s3cret", {"auth": "x"}),
        ("s3cret", {"k": "s3cret\x01"}),
        ("s3cret", {"k": ""}),
        ("s3cret", {"": "v"}),
        ("s3cret" * MESSAGE_BYTES_MAX, {}),
    ],
)
def test_what_cannot_be_sent_is_refused_without_showing_it(
    token: str, extensions: dict[str, str]
) -> None:
    with pytest.raises(ValueError, match="token") as refused:
        client_message(token, extensions)
    assert "s3cret" not in str(refused.value)


def test_refusals_show_nothing_of_the_message() -> None:
    for message in (b"n,,\x01auth=Basic s3cret\x01\x01", b"s3cret"):
        assert "s3cret" not in repr(first(message))


def test_a_broker_without_tokens_does_not_load_joserfc() -> None:
    script = "import sys, penstock.security.oauthbearer; print('joserfc' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout == "False\n"


@given(st.binary(max_size=100))
def test_random_bytes_end_the_exchange(message: bytes) -> None:
    server, checked = exchange()
    assert isinstance(server.step(message, NOW_MS), Rejected)
    assert checked == []


@given(st.data())
def test_a_changed_message_is_never_accepted_with_another_token(data: st.DataObject) -> None:
    """With a real checker: only the token of the issuer, whole, is accepted."""
    original = client_message(good_token().decode())
    message = bytearray(original)
    at = data.draw(st.integers(0, len(message) - 1))
    message[at : at + data.draw(st.integers(0, 2))] = data.draw(st.binary(max_size=2))
    answer = OAuthBearerExchange(checks_with(good_keys())).step(bytes(message), NOW_MS)
    if isinstance(answer, Accepted):
        assert good_token() in bytes(message)
        assert answer.principal == "alice"


@given(
    st.text("abcXYZ019-_.", min_size=1, max_size=50),
    st.dictionaries(
        st.text("abcABC", min_size=1, max_size=8).filter(lambda key: key.lower() != "auth"),
        st.text("ab1 =,~\t", min_size=1, max_size=10),
        max_size=5,
    ),
)
def test_the_broker_reads_what_a_client_writes(token: str, extensions: dict[str, str]) -> None:
    server, checked = exchange()
    assert isinstance(server.step(client_message(token, extensions), NOW_MS), Accepted)
    assert checked == [token.encode()]
