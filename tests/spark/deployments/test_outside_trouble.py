"""Tests which failures of a driver count as failures of the version, when brokers do not answer."""

from __future__ import annotations

import pytest

from penstock.client.address import Address
from penstock.client.errors import (
    ConnectFailed,
    ConnectionLost,
    DeadlineExceeded,
    DeliveryTimedOut,
    RequestTimedOut,
    TlsFailed,
)
from penstock.runtime import SystemClock
from penstock.spark.clients import no_broker
from penstock.spark.deployments.cluster_watch import ClusterWatch
from penstock.spark.deployments.outside_trouble import ClusterSeen, judged
from penstock.spark.options import parse_sink

OURS = ClusterSeen(frozenset({"one:9092, Two:9092", "[fd00::1]:9092"}))
LOST = ClusterSeen(OURS.addresses, lost_s=3.0)
REFUSED = "Connection refused"


def is_version(error: object, cluster: ClusterSeen) -> bool:
    """Whether a failure with this error counts towards a rollback."""
    return not judged(str(error), cluster).outside


def errors_at(address: str) -> list[str]:
    """Returns the errors of clients that cannot reach a broker."""
    refused = ConnectFailed(address, REFUSED)
    lost = ConnectionLost(f"the broker at {address} closed the connection")
    silent = RequestTimedOut(f"{address} did not answer Fetch within 30 s")
    found = [
        refused,
        lost,
        silent,
        ConnectionLost(f"the connection to {address} was closed: {silent}"),
        ConnectFailed("any broker", f"gone:1: no such host; {address}: {REFUSED}"),
        DeadlineExceeded("ListOffsets at broker 2", 60, silent),
        DeliveryTimedOut(f"orders-0: not acknowledged within delivery_timeout_ms=9: {lost}", lost),
        no_broker(parse_sink({"kafka.bootstrap.servers": address, "topic": "a"}), refused),
    ]
    return [*map(str, found), f"flows.py, line 3: {refused}", f"copy: {refused}"]


@pytest.mark.parametrize("address", ["one:9092", "two:9092", "TWO:9092", "[fd00::1]:9092"])
def test_a_broker_of_the_workers_cluster_that_does_not_answer_is_an_outage(address: str) -> None:
    for error in errors_at(address):
        assert not is_version(error, OURS), error
        assert "see penstock status" in judged(error, OURS).error


@pytest.mark.parametrize("address", ["tow:9092", "two:9093", "two.example:9092", "[fd00::2]:9092"])
def test_another_address_is_the_fault_of_the_version(address: str) -> None:
    for error in errors_at(address):
        assert is_version(error, OURS), error
        assert judged(error, OURS).error == error


@pytest.mark.parametrize("address", ["two:9092", "other-name:9092"])
def test_no_address_is_the_fault_of_the_version_while_the_worker_has_lost_its_cluster(
    address: str,
) -> None:
    for error in errors_at(address):
        assert not is_version(error, LOST), error
        assert is_version(error, ClusterSeen()), error
        long_ago = ClusterSeen(lost_s=600.0)
        assert is_version(error, long_ago), error


@pytest.mark.parametrize(
    "error",
    [
        RequestTimedOut("the cluster did not answer within 60 s"),
        DeadlineExceeded("commit", 60, RequestTimedOut("the group coordinator has not answered")),
        ConnectFailed("broker 3", "it is not in the cluster at the moment"),
    ],
)
def test_a_time_out_without_an_address_is_an_outage_only_if_the_worker_has_one(
    error: Exception,
) -> None:
    assert is_version(error, OURS) and not is_version(error, LOST)


@pytest.mark.parametrize(
    "error",
    [
        TlsFailed("two:9092", "it answers without TLS: set security_protocol"),
        TlsFailed("two:9092", "the broker requires a certificate: set ssl_certfile"),
        ConnectionLost(
            "the broker at two:9092 closed the connection: if it requires a login, set "
            "security_protocol and sasl_mechanism"
        ),
    ],
)
def test_wrong_settings_of_a_version_are_no_outage(error: Exception) -> None:
    assert is_version(error, OURS) and not is_version(error, LOST)


@pytest.mark.parametrize(
    "error",
    [
        "no such table: two:9092",
        "flows.py, line 3: ValueError: two:9092: no number",
        "another broker at two:9092; two:9092: refused",
        "the driver was killed by signal 9",
        "",
    ],
)
def test_other_errors_are_no_outage(error: str) -> None:
    assert is_version(error, OURS) and is_version(error, LOST)


def test_names_of_this_machine_are_the_same_address() -> None:
    seen = ClusterSeen(frozenset({"localhost:9092"}))
    for address in ("127.0.0.1:9092", "[::1]:9092", "localhost:9092"):
        assert not is_version(ConnectFailed(address, REFUSED), seen)
    assert is_version(ConnectFailed("127.0.0.1:9093", REFUSED), seen)


class Clock(SystemClock):
    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now


class Brokers:
    def __init__(self) -> None:
        self.brokers = {1: Address("one", 9092), 2: Address("two", 9092)}


class Watched:
    """A watch, whose cluster and lease a test changes."""

    def __init__(self) -> None:
        self.clock, self.cluster = Clock(), Brokers()
        self.lease_age_s: float | None = None
        self.watch = ClusterWatch("boot:9092", self.cluster, lambda: self.lease_age_s, self.clock)

    def at(self, now: float, lease_age_s: float | None) -> ClusterSeen:
        self.clock.now, self.lease_age_s = now, lease_age_s
        return self.watch.seen()


def test_a_worker_remembers_brokers_that_are_down() -> None:
    watched = Watched()
    watched.watch.look()
    del watched.cluster.brokers[2]
    seen = watched.at(1.0, 0.5)
    assert seen.addresses == {"boot:9092", "one:9092", "two:9092"}
    assert not is_version(ConnectFailed("two:9092", REFUSED), seen)
    for number in range(2_000):
        watched.cluster.brokers = {1: Address(f"pod-{number}", 9092)}
        watched.watch.look()
    assert len(watched.watch.seen().addresses) == 1_001


def test_a_worker_remembers_when_it_lost_its_cluster() -> None:
    watched = Watched()
    assert watched.at(1.0, None).lost_s is None, "it has not joined its group yet"
    assert watched.at(2.0, 0.5).lost_s is None
    assert watched.at(9.0, 7.5).lost_s == 0.0
    assert watched.at(20.0, None).lost_s == 0.0, "the lease has ended"
    assert watched.at(30.0, 0.5).lost_s == 10.0
