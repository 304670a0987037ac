"""Kafka's settings for listeners, and the endpoint that a client gets."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.security.listeners import (
    ENDPOINTS_MAX,
    Listener,
    ListenersInvalid,
    SecurityProtocol,
    decode_endpoints,
    encode_endpoints,
    endpoint_for,
    missing_endpoint_error,
    parse_listeners,
)
from penstock.wire.errors import ErrorCode

PLAINTEXT, SSL = SecurityProtocol.PLAINTEXT, SecurityProtocol.SSL
SASL_SSL = SecurityProtocol.SASL_SSL
TWO = {
    "listeners": "internal://10.0.0.1:9092, EXTERNAL://:9093",
    "listener.security.protocol.map": "Internal:plaintext,EXTERNAL:SASL_SSL",
    "inter.broker.listener.name": "internal",
}


def test_without_settings_there_is_kafkas_one_listener() -> None:
    found = parse_listeners({})
    assert found.bound == found.advertised == (Listener("PLAINTEXT", "", 9092, PLAINTEXT),)
    assert found.inter_broker == "PLAINTEXT"


def test_names_are_compared_in_upper_case_and_mapped_to_protocols() -> None:
    found = parse_listeners(TWO)
    assert found.bound == (
        Listener("INTERNAL", "10.0.0.1", 9092, PLAINTEXT),
        Listener("EXTERNAL", "", 9093, SASL_SSL),
    )
    assert found.inter_broker == "INTERNAL"


def test_each_listener_advertises_its_own_endpoint() -> None:
    settings = {**TWO, "advertised.listeners": "EXTERNAL://b1.example.com:19093,INTERNAL://:0"}
    found = parse_listeners(settings)
    endpoints = found.endpoints({"INTERNAL": 9092, "EXTERNAL": 9093}, "machine")
    assert endpoints == (
        Listener("EXTERNAL", "b1.example.com", 19093, SASL_SSL),
        Listener("INTERNAL", "machine", 9092, PLAINTEXT),
    )
    assert endpoint_for(endpoints, "INTERNAL") == endpoints[1]
    assert endpoint_for(endpoints, "OTHER") is None


@pytest.mark.parametrize("host", ["", "0.0.0.0", "[::]"])
def test_a_listener_on_every_address_advertises_the_machine(host: str) -> None:
    found = parse_listeners({"listeners": f"PLAINTEXT://{host}:0"})
    assert found.endpoints({"PLAINTEXT": 4711}, "machine") == (
        Listener("PLAINTEXT", "machine", 4711, PLAINTEXT),
    )


def test_a_listener_that_is_not_advertised_has_no_endpoint() -> None:
    found = parse_listeners({**TWO, "advertised.listeners": "INTERNAL://b1:9092"})
    assert [each.name for each in found.endpoints({}, "machine")] == ["INTERNAL"]


def test_an_ipv6_address_is_written_in_brackets() -> None:
    (listener,) = parse_listeners({"listeners": "PLAINTEXT://[fe80::1]:9092"}).bound
    assert listener.host == "fe80::1"
    assert str(listener) == "PLAINTEXT://[fe80::1]:9092"


def test_an_ipv4_and_an_ipv6_listener_may_share_a_port() -> None:
    settings = {"listeners": "PLAINTEXT://127.0.0.1:9092,SSL://[::1]:9092"}
    assert [each.port for each in parse_listeners(settings).bound] == [9092, 9092]


def test_advertised_endpoints_may_share_a_port() -> None:
    """They may be behind different addresses of a load balancer."""
    settings = {**TWO, "advertised.listeners": "INTERNAL://a:1,EXTERNAL://b:1"}
    assert [each.port for each in parse_listeners(settings).advertised] == [1, 1]


def test_brokers_can_be_told_by_protocol_where_to_connect() -> None:
    settings = {"listeners": "SSL://:9093", "security.inter.broker.protocol": "SSL"}
    assert parse_listeners(settings).inter_broker == "SSL"


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"listeners": "9092"}, "write NAME://host:port"),
        ({"listeners": "PLAINTEXT://"}, "write NAME://host:port"),
        ({"listeners": "://:9092"}, "write NAME://host:port"),
        ({"listeners": "a.b://:9092"}, "write NAME://host:port"),
        ({"listeners": "PLAINTEXT://:x"}, "port"),
        ({"listeners": "PLAINTEXT://:-1"}, "port"),
        ({"listeners": "PLAINTEXT://:65536"}, "port"),
        ({"listeners": "PLAINTEXT://:٣"}, "port"),
        ({"listeners": "PLAINTEXT://a b:1"}, "host"),
        ({"listeners": "PLAINTEXT://" + "a" * 256 + ":1"}, "host"),
        ({"listeners": "PLAINTEXT://::1:9092"}, "in brackets"),
        ({"listeners": "PLAINTEXT://[x]:9092"}, "between the brackets"),
        ({"listeners": "PLAINTEXT://:1,,SSL://:2"}, "empty entry"),
        ({"listeners": "PLAINTEXT://:1,plaintext://:2"}, "two listeners with the name PLAINTEXT"),
        ({"listeners": "PLAINTEXT://:1,SSL://:1"}, "PLAINTEXT, SSL have the same port 1"),
        ({"listeners": "PLAINTEXT://127.0.0.1:1,SSL://127.0.0.2:1"}, "same port"),
        ({"listeners": "EXTERNAL://:1"}, "add EXTERNAL:PROTOCOL to listener.security"),
        ({"listeners": ",".join(["SSL://:1"] * (ENDPOINTS_MAX + 1))}, "more than"),
        ({"listener.security.protocol.map": "A"}, "NAME:PROTOCOL"),
        ({"listener.security.protocol.map": "A:TLS"}, "SASL_PLAINTEXT"),
        ({"listener.security.protocol.map": "A:SSL,a:SSL"}, "two entries for A"),
        ({"listener.security.protocol.map": "SSL:SSL"}, "add PLAINTEXT:PROTOCOL"),
        ({"advertised.listeners": "SSL://b1:1"}, "not in listeners"),
        ({"advertised.listeners": "PLAINTEXT://0.0.0.0:1"}, "no client can connect to 0.0.0.0"),
        ({"advertised.listeners": "PLAINTEXT://[::]:1"}, "no client can connect to ::"),
        ({"listeners": "SSL://:1"}, "listener PLAINTEXT .security.inter.broker.protocol."),
        ({"inter.broker.listener.name": "SSL"}, "not among those that are advertised"),
        ({"inter.broker.listener.name": "OTHER"}, "not in listener.security.protocol.map"),
        ({"security.inter.broker.protocol": "TLS"}, "must be one of"),
        (
            {"inter.broker.listener.name": "SSL", "security.inter.broker.protocol": "SSL"},
            "both set",
        ),
        (
            {**TWO, "advertised.listeners": "EXTERNAL://b:1"},
            "INTERNAL .inter.broker.listener.name., which is not among",
        ),
    ],
)
def test_invalid_settings_are_refused_with_their_name(
    settings: dict[str, str], problem: str
) -> None:
    with pytest.raises(ListenersInvalid, match=problem):
        parse_listeners(settings)


@pytest.mark.parametrize(
    ("protocol", "uses_tls", "uses_sasl"),
    [("PLAINTEXT", False, False), ("SSL", True, False), ("SASL_PLAINTEXT", False, True),
     ("SASL_SSL", True, True)],
)  # fmt: skip
def test_a_protocol_says_what_it_uses(protocol: str, uses_tls: bool, uses_sasl: bool) -> None:
    found = SecurityProtocol(protocol)
    assert (found.uses_tls, found.uses_sasl) == (uses_tls, uses_sasl)


ENDPOINTS = st.lists(
    st.builds(
        Listener,
        st.from_regex(r"[A-Z][A-Z0-9_]{0,8}", fullmatch=True),
        st.text("abc.:", min_size=1),
        st.integers(1, 65_535),
        st.sampled_from(SecurityProtocol),
    ),
    unique_by=lambda each: each.name,
    max_size=5,
)


@given(ENDPOINTS)
def test_endpoints_survive_the_store(endpoints: list[Listener]) -> None:
    stored = json.loads(json.dumps(encode_endpoints(endpoints)))
    assert decode_endpoints(stored) == tuple(endpoints)


def test_fields_of_later_versions_are_ignored() -> None:
    (stored,) = encode_endpoints([Listener("A", "b", 1, SSL)])
    assert decode_endpoints([{**stored, "weight": 3}]) == (Listener("A", "b", 1, SSL),)


GOOD = {"name": "A", "host": "b", "port": 1, "protocol": "SSL"}


@pytest.mark.parametrize(
    "value",
    [None, {}, "x", [None], [{}], [GOOD, GOOD], [GOOD] * (ENDPOINTS_MAX + 1)]
    + [[{**GOOD, **bad}] for bad in (
        {"name": ""}, {"name": "a"}, {"host": ""}, {"host": 1}, {"port": 0}, {"port": 65536},
        {"port": True}, {"port": "1"}, {"protocol": "TLS"}, {"protocol": None},
    )],
)  # fmt: skip
def test_damaged_endpoints_are_refused(value: object) -> None:
    with pytest.raises(ListenersInvalid):
        decode_endpoints(value)


@pytest.mark.parametrize(
    ("version", "error"),
    [(5, ErrorCode.LEADER_NOT_AVAILABLE), (6, ErrorCode.LISTENER_NOT_FOUND), (13, 72)],
)
def test_a_leader_without_the_listener_is_an_error_the_client_knows(
    version: int, error: int
) -> None:
    assert missing_endpoint_error(version) == error
