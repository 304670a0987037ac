"""What each Python client does on a secured broker: produce, consume in a group, and administer.

A refusal is reported in one form: `Denied` for a login that fails, `Forbidden` for a right that is
missing.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, ClassVar, TypeVar

import aiokafka
import confluent_kafka as ck
import kafka
from aiokafka import errors as aio_errors
from aiokafka.abc import AbstractTokenProvider as AioTokenProvider
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin import NewTopic as AioNewTopic
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]
from kafka import errors as kafka_errors
from kafka.admin import KafkaAdminClient
from kafka.admin import NewTopic as KafkaNewTopic
from kafka.net.sasl.oauth import AbstractTokenProvider

import penstock
from compat.secured_broker import Way
from compat.token_endpoint import ClientCredentials
from penstock.client.errors import AuthenticationFailed, BrokerError
from penstock.testing.slowness import patient
from penstock.wire.errors import ErrorCode

T = TypeVar("T")
LIMIT_S = patient(60)
_DENIED_CODES = (29, 30, 31)


class Denied(Exception):
    """The broker did not accept the login."""


class Forbidden(Exception):
    """The user has no right to do this."""


class SecuredClient(ABC):
    name: ClassVar[str]

    def __init__(self, way: Way) -> None:
        self.way = way

    @abstractmethod
    def create_topic(self, name: str) -> None: ...

    @abstractmethod
    def topics(self) -> set[str]: ...

    @abstractmethod
    def produce(self, topic: str, values: Sequence[bytes]) -> None: ...

    @abstractmethod
    def consume(self, topic: str, group: str, count: int) -> list[bytes]:
        """Reads as a member of a group, and commits."""


class OursSecured(SecuredClient):
    name = "penstock"

    def _options(self) -> dict[str, Any]:
        way = self.way
        options: dict[str, Any] = {"security_protocol": way.protocol, "ssl_ca": way.authority}
        if way.certificate:
            options |= {"ssl_certificate": way.certificate, "ssl_key": way.key}
        if way.mechanism:
            options["sasl_mechanism"] = way.mechanism
        if way.token:
            options["sasl_oauth_token"] = lambda: way.token
        elif way.user:
            options |= {"sasl_username": way.user, "sasl_password": way.password}
        return options

    def _run(self, work: Callable[[], T]) -> T:
        try:
            return work()
        except AuthenticationFailed as error:
            raise Denied(error) from error
        except BrokerError as error:
            if error.code in _DENIED_CODES:
                raise Forbidden(error) from error
            raise

    def create_topic(self, name: str) -> None:
        def work() -> None:
            with penstock.Admin(self.way.bootstrap, **self._options()) as admin:
                admin.create_topic(name, partitions=1)

        self._run(work)

    def topics(self) -> set[str]:
        def work() -> set[str]:
            with penstock.Admin(self.way.bootstrap, **self._options()) as admin:
                return {each.name for each in admin.list_topics()}

        return self._run(work)

    def produce(self, topic: str, values: Sequence[bytes]) -> None:
        def work() -> None:
            with penstock.Producer(self.way.bootstrap, **self._options()) as producer:
                for sent in [producer.send(topic, value) for value in values]:
                    sent.result(LIMIT_S)

        self._run(work)

    def consume(self, topic: str, group: str, count: int) -> list[bytes]:
        def work() -> list[bytes]:
            options = {"group_id": group, "auto_offset_reset": "earliest", **self._options()}
            found: list[bytes] = []
            with penstock.Consumer(self.way.bootstrap, topics=[topic], **options) as consumer:
                until = time.monotonic() + LIMIT_S
                while len(found) < count and time.monotonic() < until:
                    found += [each.value for each in consumer.poll(500)]
                consumer.commit()
            return found

        return self._run(work)


def oidc_settings(credentials: ClientCredentials) -> dict[str, str]:
    """Returns the settings with which librdkafka gets its token itself."""
    return {
        "sasl.oauthbearer.method": "oidc",
        "sasl.oauthbearer.token.endpoint.url": credentials.url,
        "sasl.oauthbearer.client.id": credentials.client_id,
        "sasl.oauthbearer.client.secret": credentials.secret,
    }


class ConfluentSecured(SecuredClient):
    name = "confluent-kafka"

    def _config(self, **more: Any) -> dict[str, Any]:
        way = self.way
        config: dict[str, Any] = {
            "bootstrap.servers": way.bootstrap,
            "security.protocol": way.protocol,
            "ssl.ca.location": way.authority,
            "error_cb": self._on_error,
        }
        if way.certificate:
            config |= {"ssl.certificate.location": way.certificate, "ssl.key.location": way.key}
        if way.mechanism:
            config["sasl.mechanism"] = way.mechanism
        if way.credentials:
            config |= oidc_settings(way.credentials)
        elif way.token:
            config["oauth_cb"] = lambda _: (way.token, time.time() + 3600, way.user, {})
        elif way.user:
            config |= {"sasl.username": way.user, "sasl.password": way.password}
        self._failure: ck.KafkaError | None = None
        return config | more

    def _on_error(self, error: ck.KafkaError) -> None:
        if error.code() == ck.KafkaError._AUTHENTICATION:
            self._failure = error

    def _check(self, error: ck.KafkaError | None = None) -> None:
        if self._failure is not None:
            raise Denied(self._failure.str())
        if error is not None and error.code() in _DENIED_CODES:
            raise Forbidden(error.str())
        if error is not None:
            raise ck.KafkaException(error)

    def _asked(self, admin: AdminClient, ask: Callable[[], T]) -> T:
        try:
            return ask()
        except ck.KafkaException as caught:
            admin.poll(1)
            self._check(caught.args[0])
            raise

    def create_topic(self, name: str) -> None:
        admin = AdminClient(self._config())
        if self.way.token:
            admin.poll(1)  # asks for the token
        asked = admin.create_topics([NewTopic(name, 1)], request_timeout=LIMIT_S)
        self._asked(admin, lambda: asked[name].result(LIMIT_S))

    def topics(self) -> set[str]:
        admin = AdminClient(self._config())
        until = time.monotonic() + LIMIT_S
        while True:
            try:
                return {*admin.list_topics(timeout=1).topics}
            except ck.KafkaException:
                admin.poll(0.1)  # calls the callbacks
                self._check()
                if time.monotonic() > until:
                    raise

    def produce(self, topic: str, values: Sequence[bytes]) -> None:
        producer = ck.Producer(self._config(**{"message.timeout.ms": int(LIMIT_S * 1000)}))
        failures: list[ck.KafkaError] = []

        def on_delivery(error: ck.KafkaError | None, _: ck.Message) -> None:
            if error is not None:
                failures.append(error)

        for value in values:
            producer.produce(topic, value, on_delivery=on_delivery)
        until = time.monotonic() + LIMIT_S
        while producer.flush(0.2) and self._failure is None and time.monotonic() < until:
            pass
        if self._failure is not None:
            producer.purge()
        self._check(failures[0] if failures else None)
        assert not len(producer), "not all records were sent"

    def consume(self, topic: str, group: str, count: int) -> list[bytes]:
        options = {"group.id": group, "auto.offset.reset": "earliest"}
        consumer = ck.Consumer(self._config(**options))
        found: list[bytes] = []
        try:
            consumer.subscribe([topic])
            until = time.monotonic() + LIMIT_S
            while len(found) < count and time.monotonic() < until:
                message = consumer.poll(0.2)
                self._check(None if message is None else message.error())
                if message is not None:
                    found.append(message.value() or b"")
            consumer.commit(asynchronous=False)
        finally:
            consumer.close()
        return found


class _GivenToken(AbstractTokenProvider):  # type: ignore[misc]
    def __init__(self, token: str) -> None:
        super().__init__()
        self._token = token

    def token(self) -> str:
        return self._token


class KafkaPythonSecured(SecuredClient):
    name = "kafka-python"
    bootstrap_ms = int(LIMIT_S * 1000)

    def _config(self, **more: Any) -> dict[str, Any]:
        way = self.way
        config: dict[str, Any] = {
            "bootstrap_servers": way.bootstrap,
            "security_protocol": way.protocol,
            "ssl_cafile": way.authority,
            "bootstrap_timeout_ms": self.bootstrap_ms,
        }
        if way.certificate:
            config |= {"ssl_certfile": way.certificate, "ssl_keyfile": way.key}
        if way.mechanism:
            config["sasl_mechanism"] = way.mechanism
        if way.token:
            config["sasl_oauth_token_provider"] = _GivenToken(way.token)
        elif way.user:
            config |= {"sasl_plain_username": way.user, "sasl_plain_password": way.password}
        return config | more

    def _run(self, work: Callable[[], T]) -> T:
        try:
            return work()
        except kafka_errors.SaslAuthenticationFailedError as error:
            raise Denied(error) from error
        except kafka_errors.KafkaTimeoutError as error:
            # A client that is not connected yet logs the reason, and tries again until then.
            if "bootstrap" in str(error):
                raise Denied(error) from error
            raise
        except kafka_errors.KafkaError as error:
            if getattr(error, "errno", None) in _DENIED_CODES:
                raise Forbidden(error) from error
            raise

    def create_topic(self, name: str) -> None:
        def work() -> None:
            admin = KafkaAdminClient(**self._config())
            try:
                admin.create_topics([KafkaNewTopic(name, 1, 1)])
            finally:
                admin.close()

        self._run(work)

    def topics(self) -> set[str]:
        def work() -> set[str]:
            admin = KafkaAdminClient(**self._config())
            try:
                return {*admin.list_topics()}
            finally:
                admin.close()

        return self._run(work)

    def produce(self, topic: str, values: Sequence[bytes]) -> None:
        def work() -> None:
            producer = kafka.KafkaProducer(**self._config())
            try:
                for sent in [producer.send(topic, value) for value in values]:
                    sent.get(LIMIT_S)
            finally:
                producer.close(timeout=5)

        self._run(work)

    def consume(self, topic: str, group: str, count: int) -> list[bytes]:
        def work() -> list[bytes]:
            options = {"group_id": group, "auto_offset_reset": "earliest"}
            consumer = kafka.KafkaConsumer(topic, **self._config(**options))
            found: list[bytes] = []
            try:
                until = time.monotonic() + LIMIT_S
                while len(found) < count and time.monotonic() < until:
                    for records in consumer.poll(500).values():
                        found += [each.value for each in records]
                    if topic in consumer._client.cluster.unauthorized_topics:
                        # The library logs it, and waits for the right.
                        raise Forbidden(topic)
                consumer.commit()
            finally:
                consumer.close()
            return found

        return self._run(work)


class _AioToken(AioTokenProvider):  # type: ignore[misc]
    def __init__(self, token: str) -> None:
        self._token = token

    async def token(self) -> str:
        return self._token


_AIO_DENIED = (
    # The library logs the reason, and finds no broker to connect to.
    aio_errors.KafkaConnectionError,
    # It takes the first answer to a bad token for a success, and its next request is refused.
    aio_errors.NodeNotReadyError,
)


class AioSecured(SecuredClient):
    name = "aiokafka"

    def _config(self) -> dict[str, Any]:
        way = self.way
        context = ssl.create_default_context(cafile=way.authority)
        if way.certificate:
            context.load_cert_chain(way.certificate, way.key)
        config: dict[str, Any] = {
            "bootstrap_servers": way.bootstrap,
            "security_protocol": way.protocol,
            "ssl_context": context,
        }
        if way.mechanism:
            config["sasl_mechanism"] = way.mechanism
        if way.token:
            config["sasl_oauth_token_provider"] = _AioToken(way.token)
        elif way.user:
            config |= {"sasl_plain_username": way.user, "sasl_plain_password": way.password}
        return config

    def _run(self, work: Callable[[], Awaitable[T]]) -> T:
        async def bounded() -> T:
            async with asyncio.timeout(LIMIT_S):
                return await work()

        try:
            return asyncio.run(bounded())
        except _AIO_DENIED as error:
            raise Denied(error) from error
        except aio_errors.BrokerResponseError as error:
            if error.errno in _DENIED_CODES:
                raise Forbidden(error) from error
            raise

    def _administer(self, work: Callable[[AIOKafkaAdminClient], Awaitable[T]]) -> T:
        async def run() -> T:
            admin = AIOKafkaAdminClient(**self._config())
            try:
                await admin.start()
                return await work(admin)
            finally:
                await admin.close()

        return self._run(run)

    def create_topic(self, name: str) -> None:
        async def work(admin: AIOKafkaAdminClient) -> None:
            answer = await admin.create_topics([AioNewTopic(name, 1, 1)])
            code = answer.topic_errors[0][1]
            if code in _DENIED_CODES:
                raise Forbidden(code)
            assert code == ErrorCode.NONE, code

        self._administer(work)

    def topics(self) -> set[str]:
        async def work(admin: AIOKafkaAdminClient) -> set[str]:
            return {*await admin.list_topics()}

        return self._administer(work)

    def produce(self, topic: str, values: Sequence[bytes]) -> None:
        async def work() -> None:
            producer = aiokafka.AIOKafkaProducer(**self._config())
            await producer.start()
            try:
                for value in values:
                    await producer.send_and_wait(topic, value)
            finally:
                await producer.stop()

        self._run(work)

    def consume(self, topic: str, group: str, count: int) -> list[bytes]:
        async def work() -> list[bytes]:
            options = {"group_id": group, "auto_offset_reset": "earliest"}
            consumer = aiokafka.AIOKafkaConsumer(topic, **self._config(), **options)
            await consumer.start()
            found: list[bytes] = []
            try:
                while len(found) < count:
                    found.append((await consumer.getone()).value or b"")
                await consumer.commit()
            finally:
                await consumer.stop()
            return found

        return self._run(work)


CLIENTS: dict[str, type[SecuredClient]] = {
    each.name: each for each in (OursSecured, ConfluentSecured, KafkaPythonSecured, AioSecured)
}
