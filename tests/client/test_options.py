"""Tests client options: parsed once, refused with advice, with Kafka's meaning."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, get_type_hints

import pytest

from penstock.client.address import Address
from penstock.client.errors import ClientError, OptionError
from penstock.client.interceptors import ConsumerInterceptor, ProducerInterceptor
from penstock.client.option_keywords import AdminKeywords, ConsumerKeywords, ProducerKeywords
from penstock.client.option_values import IsolationLevel, ResetPolicy
from penstock.client.options import AdminOptions, ClientOptions, ConsumerOptions, ProducerOptions
from penstock.client.routers import DefaultRouter, RoundRobinRouter
from penstock.records.batch import Codec

KINDS: Mapping[type[ClientOptions], type] = {
    ProducerOptions: ProducerKeywords,
    ConsumerOptions: ConsumerKeywords,
    AdminOptions: AdminKeywords,
}


def producer(**keywords: Any) -> ProducerOptions:
    return ProducerOptions.parse("localhost:9092", keywords)


def consumer(**keywords: Any) -> ConsumerOptions:
    return ConsumerOptions.parse("localhost:9092", keywords)


@pytest.mark.parametrize("options", KINDS)
def test_typed_dict_and_dataclass_agree(options: type[ClientOptions]) -> None:
    """So type checkers accept exactly the options that are understood."""
    written = get_type_hints(KINDS[options])
    assert set(written) == options.names()
    understood = get_type_hints(options)
    for name, kind in written.items():
        if understood[name] in (int, bool, str, str | None, int | None):
            assert kind == understood[name] or name == "acks", name


@pytest.mark.parametrize("options", KINDS)
def test_every_default_is_valid(options: type[ClientOptions]) -> None:
    """Only an address must be given. A copy of valid options is valid."""
    made = options.parse("localhost", {})
    assert dataclasses.replace(made) == made


def test_defaults_are_kafkas() -> None:
    """Safe by default: acknowledged by all in-sync replicas, each record once."""
    options = producer()
    assert (options.acks, options.enable_idempotence) == (-1, True)
    assert (options.linger_ms, options.batch_size) == (5, 16384)
    assert options.delivery_timeout_ms == 120_000
    assert consumer().auto_offset_reset == ResetPolicy("latest")
    assert consumer().isolation_level == IsolationLevel.READ_UNCOMMITTED


@pytest.mark.parametrize(
    ("given", "acks"), [(0, 0), (1, 1), (-1, -1), ("all", -1), ("0", 0), ("1", 1), ("-1", -1)]
)
def test_acks_in_all_spellings(given: object, acks: int) -> None:
    """Java programs give text, Python programs give numbers."""
    assert producer(acks=given).acks == acks


def test_idempotence_is_disabled_by_other_options_unless_requested() -> None:
    """A default never makes another option invalid. An explicit request that
    conflicts with one is refused."""
    assert not producer(acks=1).enable_idempotence
    assert not producer(max_in_flight_requests_per_connection=6).enable_idempotence
    assert not producer(retries=0).enable_idempotence
    assert producer(max_in_flight_requests_per_connection=5).enable_idempotence
    for conflict in (
        {"acks": 1},
        {"max_in_flight_requests_per_connection": 6},
        {"retries": 0},
    ):
        with pytest.raises(OptionError, match=f"enable_idempotence.*{next(iter(conflict))}"):
            producer(enable_idempotence=True, **conflict)


def test_the_delivery_timeout_allows_at_least_one_attempt() -> None:
    """Its default grows with the other timeouts. A value that is too short is refused."""
    assert producer(request_timeout_ms=200_000, linger_ms=10).delivery_timeout_ms == 200_010
    with pytest.raises(OptionError, match="at least linger_ms"):
        producer(delivery_timeout_ms=30_000)


def test_compression_is_given_by_name() -> None:
    """Kafka's names; levels are allowed only if the codec has them."""
    assert producer(compression_type="zstd", compression_level=3).compression_type is Codec.ZSTD
    assert producer(compression_type=Codec.LZ4).compression_type is Codec.LZ4
    with pytest.raises(OptionError, match="gzip"):
        producer(compression_type="brotli")
    with pytest.raises(OptionError, match="snappy"):
        producer(compression_type="snappy", compression_level=3)
    with pytest.raises(OptionError, match="compression_level is 12: give 1 to 9"):
        producer(compression_type="gzip", compression_level=12)


@pytest.mark.parametrize(
    ("given", "policy"),
    [
        ("earliest", ResetPolicy("earliest")),
        ("none", ResetPolicy("none")),
        ("timestamp:1700000000000", ResetPolicy("timestamp", 1_700_000_000_000)),
        ("timestamp:2023-11-14T22:13:20Z", ResetPolicy("timestamp", 1_700_000_000_000)),
        ("timestamp:2023-11-14T23:13:20+01:00", ResetPolicy("timestamp", 1_700_000_000_000)),
        (
            datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC),
            ResetPolicy("timestamp", 1_700_000_000_000),
        ),
        ("by_duration:PT1H30M", ResetPolicy("duration", 5_400_000)),
        ("by_duration:P1DT0.5S", ResetPolicy("duration", 86_400_500)),
        (timedelta(minutes=2), ResetPolicy("duration", 120_000)),
    ],
)
def test_reset_policies_are_parsed(given: object, policy: ResetPolicy) -> None:
    """By name, by timestamp, or by duration."""
    assert consumer(auto_offset_reset=given).auto_offset_reset == policy


@pytest.mark.parametrize(
    ("given", "advice"),
    [
        ("smallest", "earliest"),
        ("end", "latest"),
        ("error", "none"),
        ("sometimes", "datetime"),
        ("timestamp:yesterday", "milliseconds since 1970"),
        ("timestamp:2023-11-14T22:13:20", "time zone"),
        (datetime(2023, 11, 14), "time zone"),  # noqa: DTZ001 (that is the point)
        ("by_duration:P", "PT1H"),
        ("by_duration:PT", "PT1H"),
        (timedelta(seconds=-1), "positive"),
        (5, "earliest"),
    ],
)
def test_invalid_reset_policies_are_refused(given: object, advice: str) -> None:
    """Names of other clients and incomplete timestamps get an error with the correct form."""
    with pytest.raises(OptionError, match=advice):
        consumer(auto_offset_reset=given)


def test_a_reset_policy_returns_the_timestamp_to_look_up() -> None:
    """Kafka's special timestamps for both ends. Durations count back from now, and never below
    0."""
    assert ResetPolicy("earliest").timestamp_ms(50) == -2
    assert ResetPolicy("latest").timestamp_ms(50) == -1
    assert ResetPolicy("timestamp", 7).timestamp_ms(50) == 7
    assert ResetPolicy("duration", 7).timestamp_ms(50) == 43
    assert ResetPolicy("duration", 70).timestamp_ms(50) == 0


@pytest.mark.parametrize(
    ("options", "name", "advice"),
    [
        (ProducerOptions, "linger.ms", "it is spelled linger_ms here"),
        (ProducerOptions, "LINGER_MS", "it is spelled linger_ms here"),
        (ProducerOptions, "queue.buffering.max.ms", "it is called linger_ms here"),
        (ProducerOptions, "message.timeout.ms", "it is called delivery_timeout_ms here"),
        (ProducerOptions, "partitioner", "it is called router here"),
        (ProducerOptions, "max_batch_size", "it is called batch_size here"),
        (ProducerOptions, "linger_mss", "did you mean linger_ms?"),
        (ProducerOptions, "batch.num.messages", "set batch_size"),
        (ProducerOptions, "queue.buffering.max.kbytes", "is in bytes"),
        (ProducerOptions, "group_id", "group_id is an option of consumers"),
        (ProducerOptions, "transactional.id", "it is spelled transactional_id here"),
        (ProducerOptions, "key.serializer", "producers have key_serializer"),
        (ConsumerOptions, "acks", "acks is an option of producers"),
        (ConsumerOptions, "fetch.wait.max.ms", "it is called fetch_max_wait_ms here"),
        (ConsumerOptions, "consumer_timeout_ms", "poll"),
        (ConsumerOptions, "auto_ofset_reset", "did you mean auto_offset_reset?"),
        (ConsumerOptions, "security.protocol", "it is spelled security_protocol here"),
        (ConsumerOptions, "ssl_cafile", "it is called ssl_ca here"),
        (ProducerOptions, "ssl.ca.location", "it is called ssl_ca here"),
        (ProducerOptions, "sasl.mechanisms", "it is called sasl_mechanism here"),
        (AdminOptions, "sasl_plain_username", "it is called sasl_username here"),
        (AdminOptions, "sasl.jaas.config", "give sasl_username and sasl_password"),
        (AdminOptions, "ssl.keystore.location", "PEM files, not keystores"),
        (ConsumerOptions, "sasl.kerberos.service.name", "Kerberos"),
        (ConsumerOptions, "api_version", "leave the option out"),
        (AdminOptions, "xyzzy", "the options are client_id, default_api_timeout_ms"),
        (AdminOptions, "bootstrap.servers", "give the brokers as the first"),
    ],
)
def test_unknown_options_get_a_suggestion(
    options: type[ClientOptions], name: str, advice: str
) -> None:
    """The Python spelling, Penstock's name for it, the client that has it, or the nearest name."""
    with pytest.raises(OptionError) as caught:
        options.parse("localhost", {name: 1})
    assert f"unknown option '{name}'" in str(caught.value)
    assert advice in str(caught.value)


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"linger_ms": -1}, "linger_ms is -1: give 0 to 2147483647"),
        ({"linger_ms": "5"}, "linger_ms is '5': give a whole number"),
        ({"linger_ms": True}, "linger_ms is True: give a whole number"),
        ({"linger_ms": None}, "linger_ms is None: give a whole number"),
        ({"enable_idempotence": "true"}, "give True or False"),
        ({"acks": 2}, "acks is 2: give 0, 1 or"),
        ({"acks": True}, "acks is True"),
        ({"client_id": 7}, "client_id is 7: give a string"),
        ({"buffer_memory": 100}, "at least batch_size"),
        ({"retry_backoff_ms": 5_000}, "retry_backoff_max_ms"),
        ({"router": 7}, "router is 7"),
        ({"router": RoundRobinRouter}, "give a router"),
        ({"router": lambda one: 0}, "topic, key, count"),
        ({"router": DefaultRouter(), "partitioner_ignore_keys": True}, "leave out router"),
        ({"interceptors": [ProducerInterceptor]}, "not their classes"),
        ({"interceptors": [ConsumerInterceptor()]}, "method on_send"),
        ({"interceptors": ProducerInterceptor()}, "give a list"),
    ],
)
def test_wrong_values_of_producer_options_are_refused(
    keywords: dict[str, Any], message: str
) -> None:
    """The error names the option, repeats the value and says what to give."""
    with pytest.raises(OptionError) as caught:
        producer(**keywords)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"session_timeout_ms": 3_000, "heartbeat_interval_ms": 3_000}, "at best a third"),
        ({"group_instance_id": "a"}, "give group_id too"),
        ({"enable_auto_commit": True}, "give group_id too"),
        ({"group_id": ""}, "not empty"),
        ({"fetch_max_wait_ms": 30_000}, "request_timeout_ms"),
        ({"isolation_level": "serializable"}, "read_committed"),
        ({"partition_assignment_strategy": "best"}, "cooperative-sticky"),
        ({"partition_assignment_strategy": []}, "at least one"),
        ({"partition_assignment_strategy": [7]}, "or an assignor"),
        ({"max_poll_records": 0}, "give 1 to"),
    ],
)
def test_wrong_values_of_consumer_options_are_refused(
    keywords: dict[str, Any], message: str
) -> None:
    """Contradictory options are refused before anything connects."""
    with pytest.raises(OptionError) as caught:
        consumer(**keywords)
    assert message in str(caught.value)


def test_auto_commit_is_off_without_a_group() -> None:
    """Without a group there is nowhere to commit."""
    assert not consumer().enable_auto_commit
    assert consumer(group_id="g").enable_auto_commit


def test_the_rebalance_timeout_defaults_to_max_poll_interval_ms() -> None:
    """One option says how slow a member may be, unless both are given."""
    assert consumer(max_poll_interval_ms=7_000).rebalance_timeout_ms == 7_000
    options = consumer(max_poll_interval_ms=7_000, rebalance_timeout_ms=9_000)
    assert options.rebalance_timeout_ms == 9_000


def test_a_short_session_timeout_shortens_the_heartbeat_interval() -> None:
    """One lost heartbeat must not end the membership. An explicit interval is not changed."""
    assert consumer(session_timeout_ms=6_000).heartbeat_interval_ms == 2_000
    assert consumer(session_timeout_ms=60_000).heartbeat_interval_ms == 3_000
    options = consumer(session_timeout_ms=6_000, heartbeat_interval_ms=5_000)
    assert options.heartbeat_interval_ms == 5_000


def test_assignors_by_name_and_as_objects() -> None:
    """One name, several, or assignor objects."""

    class Own:
        def assign(self) -> None: ...

    own = Own()
    assert consumer(partition_assignment_strategy="sticky").partition_assignment_strategy == (
        "sticky",
    )
    options = consumer(partition_assignment_strategy=["range", own])
    assert options.partition_assignment_strategy == ("range", own)


def test_addresses_as_text_and_as_a_list() -> None:
    """The error for an invalid address shows its format."""
    wanted = (Address("a", 1), Address("b", 9092))
    assert ProducerOptions.parse("a:1,b", {}).bootstrap == wanted
    assert ProducerOptions.parse(["a:1", "b"], {}).bootstrap == wanted
    for wrong in ("", [], "a:b", None, [7], 9092):
        with pytest.raises(OptionError, match=r"bootstrap_servers.*HOST:PORT|valid port"):
            ProducerOptions.parse(wrong, {})  # type: ignore[arg-type]


def test_options_become_cluster_and_connection_configs() -> None:
    """Milliseconds become seconds, and the response limit exceeds a large fetch."""
    config = producer(
        client_id="me", request_timeout_ms=1_500, retry_backoff_ms=20, max_block_ms=250
    ).cluster_config()
    assert config.connection.client_id == "me"
    assert config.connection.request_timeout_s == 1.5
    assert (config.retry_backoff_s, config.retry_backoff_max_s) == (0.02, 1.0)
    assert config.deadline_s == 0.25
    assert consumer(default_api_timeout_ms=700).cluster_config().deadline_s == 0.7
    assert AdminOptions.parse("a", {}).cluster_config().deadline_s == 60.0
    large = consumer(fetch_max_bytes=1 << 30).connection_config()
    assert large.response_bytes_max > 1 << 30


def test_functions_become_routers() -> None:
    """A function is a router. Without one, the default router is created from the options."""
    options = producer(router=lambda topic, key, count: 0)
    assert options.make_router() is options.router
    made = producer(partitioner_ignore_keys=True).make_router()
    assert isinstance(made, DefaultRouter)
    assert made.ignore_keys


def test_option_errors_are_value_errors_and_client_errors() -> None:
    """They can be caught as either, and are not retriable."""
    with pytest.raises(ValueError, match="linger_ms") as caught:
        producer(linger_ms=-1)
    assert isinstance(caught.value, ClientError)
    assert not caught.value.retriable
