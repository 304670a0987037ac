"""Tests SASL in the clients: every mechanism, refused logins, and sessions that are renewed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import pytest
import uvloop

from client.fake_broker import SILENCE, FakeBroker
from client.fake_sasl import FakeSasl
from penstock import Admin, Consumer, Producer, aio
from penstock.client.cluster import Cluster
from penstock.client.environment import default_environment
from penstock.client.errors import (
    AuthenticationFailed,
    ClientError,
    ConnectFailed,
    ConnectionLost,
)
from penstock.client.options import AdminOptions
from penstock.net.client_login import Session
from penstock.testing.slowness import patient
from penstock.wire.api import ApiKey
from penstock.wire.messages import MetadataRequest, MetadataResponse

T = TypeVar("T")

PASSWORDS = {
    "security_protocol": "SASL_PLAINTEXT",
    "sasl_mechanism": "SCRAM-SHA-512",
    "sasl_username": "alice",
    "sasl_password": "tea",
}
TOKEN = {
    "security_protocol": "SASL_PLAINTEXT",
    "sasl_mechanism": "OAUTHBEARER",
    "sasl_oauth_token": "abc.def.ghi",
}


def in_cluster(fake: FakeBroker, work: Callable[[Cluster], Awaitable[T]], /, **options: Any) -> T:
    """Runs the work with an open cluster."""

    async def main() -> T:
        env = default_environment()
        config = AdminOptions.parse(fake.address, options).cluster_config()
        async with Cluster(config, env.network, env.clock, env.random) as cluster:
            return await work(cluster)

    return asyncio.run(main())


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(patient(60)):
        while not holds():  # noqa: ASYNC110 (the broker is on another thread)
            await asyncio.sleep(0.01)


async def nothing(cluster: Cluster) -> None:
    """The login alone."""


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
@pytest.mark.parametrize("has_authenticate", [True, False])
def test_a_client_logs_in_with_a_password(mechanism: str, has_authenticate: bool) -> None:
    """Also at a broker that takes tokens without a header."""
    sasl = FakeSasl(has_authenticate=has_authenticate)
    with FakeBroker(sasl=sasl) as fake:
        in_cluster(fake, nothing, **{**PASSWORDS, "sasl_mechanism": mechanism})
    assert sasl.logins == ["alice"]


def test_a_client_logs_in_on_uvloop() -> None:
    sasl = FakeSasl()
    with FakeBroker(sasl=sasl) as fake:

        async def main() -> None:
            async with aio.Admin(fake.address, **PASSWORDS) as admin:  # type: ignore[arg-type]
                await admin.describe_cluster()

        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(main())
    assert sasl.logins


@pytest.mark.parametrize("kind", ["text", "function", "coroutine function", "returns a coroutine"])
def test_a_client_logs_in_with_a_token(kind: str) -> None:
    """A text, or a function that is asked for each login."""

    async def slow() -> str:
        await asyncio.sleep(0)
        return "abc.def.ghi"

    sources: dict[str, Any] = {
        "text": "abc.def.ghi",
        "function": lambda: "abc.def.ghi",
        "coroutine function": slow,
        "returns a coroutine": lambda: asyncio.wait_for(slow(), 10),
    }
    sasl = FakeSasl(tokens={"abc.def.ghi": "ann"})
    with FakeBroker(sasl=sasl) as fake:
        in_cluster(fake, nothing, **{**TOKEN, "sasl_oauth_token": sources[kind]})
    assert sasl.logins == ["ann"]


def test_a_refused_token_is_an_authentication_error() -> None:
    sasl = FakeSasl(tokens={})
    with FakeBroker(sasl=sasl) as fake, pytest.raises(AuthenticationFailed) as failed:
        in_cluster(fake, nothing, **TOKEN)
    assert "check the user name, and the password or token" in str(failed.value)
    assert "abc.def.ghi" not in str(failed.value)
    assert sasl.failures == ["the token is not known"]


def test_a_token_function_that_fails_is_named_without_its_message() -> None:
    """The message may contain a secret. The cause of the error has it."""

    def fail() -> str:
        raise LookupError("secret-1234")

    with FakeBroker(sasl=FakeSasl()) as fake, pytest.raises(AuthenticationFailed) as failed:
        in_cluster(fake, nothing, **{**TOKEN, "sasl_oauth_token": fail})
    assert "sasl_oauth_token raised LookupError" in str(failed.value)
    assert "secret-1234" not in str(failed.value)
    assert isinstance(failed.value.__cause__, LookupError)


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_a_wrong_password_is_refused_at_once(mechanism: str) -> None:
    """It is not retried, and the error has the address but not the password."""
    sasl = FakeSasl()
    with FakeBroker(sasl=sasl) as fake:
        wrong = {**PASSWORDS, "sasl_mechanism": mechanism, "sasl_password": "coffee-77"}
        with pytest.raises(AuthenticationFailed) as failed:
            in_cluster(fake, nothing, **wrong)
        assert fake.connections == 1
        assert failed.value.address == fake.address
    assert not failed.value.retriable
    assert "coffee-77" not in str(failed.value)
    assert len(sasl.failures) == 1
    assert "the password is wrong" in sasl.failures[0]


def test_without_sasl_authenticate_a_wrong_password_closes_the_connection() -> None:
    """The broker has no way to say more."""
    with FakeBroker(sasl=FakeSasl(has_authenticate=False)) as fake:
        wrong = {**PASSWORDS, "sasl_mechanism": "PLAIN", "sasl_password": "coffee"}
        with pytest.raises(ConnectFailed, match="during the login: check the user name"):
            in_cluster(fake, nothing, **wrong)


def test_a_mechanism_that_is_not_offered_is_named_with_those_that_are() -> None:
    with (
        FakeBroker(sasl=FakeSasl(mechanisms=("PLAIN",))) as fake,
        pytest.raises(AuthenticationFailed, match=r"does not offer SCRAM-SHA-512 .*\(PLAIN\)"),
    ):
        in_cluster(fake, nothing, **PASSWORDS)


def test_a_broker_without_sasl_is_reported(fake: FakeBroker) -> None:
    with pytest.raises(AuthenticationFailed, match=r"does not use SASL.*set security_protocol"):
        in_cluster(fake, nothing, **PASSWORDS)


def test_a_client_without_a_login_is_told_that_it_needs_one() -> None:
    """The broker closes the connection at the first request."""
    with (
        FakeBroker(sasl=FakeSasl()) as fake,
        pytest.raises(ConnectionLost, match="set security_protocol and sasl_mechanism"),
    ):
        in_cluster(fake, nothing)


@pytest.mark.parametrize("kind", ["producer", "consumer", "admin"])
@pytest.mark.parametrize("blocking", [True, False])
def test_every_client_raises_a_refused_login(kind: str, blocking: bool) -> None:
    """From its first call."""
    wrong: dict[str, Any] = {**PASSWORDS, "sasl_password": "coffee"}
    with FakeBroker(sasl=FakeSasl()) as fake:
        with pytest.raises(AuthenticationFailed):
            if blocking:
                _use_blocking(kind, fake.address, wrong)
            else:
                asyncio.run(_use_async(kind, fake.address, wrong))
        assert fake.connections <= 2


def _use_blocking(kind: str, address: str, options: dict[str, Any]) -> None:
    if kind == "producer":
        with Producer(address, **options) as producer:
            producer.send("a", b"1").result()
    elif kind == "consumer":
        with Consumer(address, topics="a", group_id="g", **options) as consumer:
            consumer.poll(timeout_ms=60_000)
    else:
        with Admin(address, **options) as admin:
            admin.list_topics()


async def _use_async(kind: str, address: str, options: dict[str, Any]) -> None:
    if kind == "producer":
        async with aio.Producer(address, **options) as producer:
            await (await producer.send("a", b"1"))
    elif kind == "consumer":
        async with aio.Consumer(address, topics="a", group_id="g", **options) as consumer:
            await consumer.poll(timeout_ms=60_000)
    else:
        async with aio.Admin(address, **options) as admin:
            await admin.list_topics()


def test_many_callers_make_few_logins_that_are_refused() -> None:
    """After a refused login the error is repeated without another attempt."""
    sasl = FakeSasl()
    with FakeBroker(sasl=sasl) as fake:

        async def work(cluster: Cluster) -> list[Any]:
            sasl.passwords["alice"] = "changed"
            cluster.close()

            async def ask() -> None:
                await cluster.ask_any(MetadataRequest([]), MetadataResponse)

            return await asyncio.gather(*(ask() for _ in range(50)), return_exceptions=True)

        outcomes = in_cluster(
            fake, work, **PASSWORDS, retry_backoff_max_ms=60_000, default_api_timeout_ms=60_000
        )
    assert all(isinstance(outcome, AuthenticationFailed) for outcome in outcomes)
    assert len(sasl.failures) == 1


# -- sessions that end ---------------------------------------------------------------------------


def test_a_session_is_renewed_and_no_request_is_lost() -> None:
    """Requests go on all the time, over many sessions, on one connection."""
    sasl = FakeSasl(told_ms=1_200)
    with FakeBroker(sasl=sasl) as fake:
        fake.model.add_topic("a")

        async def work(cluster: Cluster) -> int:
            connection = await cluster.connection(next(iter(cluster.brokers)))
            answered = 0
            while len(sasl.logins) < 4:
                request = MetadataRequest([MetadataRequest.Topic(name="a")])
                answers = await asyncio.gather(
                    *(connection.call(request, MetadataResponse) for _ in range(5))
                )
                assert all(answer.topics[0].name == "a" for answer in answers)
                answered += len(answers)
            assert connection.is_open
            return answered

        assert in_cluster(fake, work, **PASSWORDS) > 0
        assert sasl.closes == []
        assert sasl.failures == []


def test_requests_that_are_made_during_a_renewal_keep_their_order() -> None:
    """The renewal waits for a request in flight, and the later requests wait for the renewal."""
    with FakeBroker(sasl=FakeSasl()) as fake:
        for name in ("a", "b", "c"):
            fake.model.add_topic(name)

        async def work(cluster: Cluster) -> list[Any]:
            connection = await cluster.connection(next(iter(cluster.brokers)))

            def ask(name: str) -> asyncio.Future[MetadataResponse]:
                request = MetadataRequest([MetadataRequest.Topic(name=name)])
                return connection.submit(request, MetadataResponse)

            first = ask("a")
            connection.hold()
            second, third = ask("b"), ask("c")
            await connection.drained()
            assert first.done()
            assert not second.done()
            connection.release()
            answers = await asyncio.gather(first, second, third)
            return [answer.topics[0].name for answer in answers]

        assert in_cluster(fake, work, **PASSWORDS) == ["a", "b", "c"]
        asked = [
            request.topics[0].name for request in fake.asked(ApiKey.METADATA) if request.topics
        ]
        assert asked == ["a", "b", "c"]


def test_held_requests_fail_if_the_connection_does() -> None:
    with FakeBroker(sasl=FakeSasl()) as fake:

        async def work(cluster: Cluster) -> None:
            connection = await cluster.connection(next(iter(cluster.brokers)))
            fake.next(ApiKey.METADATA, SILENCE)
            stuck = connection.submit(MetadataRequest([]), MetadataResponse)
            connection.hold()
            held = connection.submit(MetadataRequest([]), MetadataResponse)
            draining = asyncio.ensure_future(connection.drained())
            await asyncio.sleep(0)
            connection.close()
            for waiting in (stuck, held, draining):
                with pytest.raises(ConnectionLost):
                    await waiting

        in_cluster(fake, work, **PASSWORDS)


def test_a_renewal_with_a_changed_password_ends_the_connection() -> None:
    """The next request gets the reason."""
    sasl = FakeSasl(told_ms=1_000)
    with FakeBroker(sasl=sasl) as fake:

        async def work(cluster: Cluster) -> ClientError:
            connection = await cluster.connection(next(iter(cluster.brokers)))
            sasl.passwords["alice"] = "changed"
            await until(lambda: not connection.is_open)
            with pytest.raises(AuthenticationFailed) as failed:
                await connection.call(MetadataRequest([]), MetadataResponse)
            return failed.value

        assert not in_cluster(fake, work, **PASSWORDS).retriable
    assert "the password is wrong" in sasl.failures


def test_a_session_is_used_to_its_end_if_no_token_is_to_be_had(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The provider of tokens is down for a while. It is asked again before the session ends.

    The renewal is due at once, so that enough of the session is left for another attempt.
    """
    sasl = FakeSasl(tokens={"abc.def.ghi": "ann"}, told_ms=10_000)
    due_s = [0.0]
    monkeypatch.setattr(Session, "renewal_s", lambda *_: due_s.pop() if due_s else None)
    calls = 0

    def token() -> str:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise ConnectionError("down")
        return "abc.def.ghi"

    with FakeBroker(sasl=sasl) as fake, caplog.at_level(logging.WARNING):

        async def work(cluster: Cluster) -> None:
            connection = await cluster.connection(next(iter(cluster.brokers)))
            await until(lambda: len(sasl.logins) >= 2)
            await connection.call(MetadataRequest([]), MetadataResponse)

        in_cluster(fake, work, **{**TOKEN, "sasl_oauth_token": token})
    assert "could not renew the login" in caplog.text
    assert sasl.logins == ["ann", "ann"]
