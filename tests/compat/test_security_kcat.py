"""kcat on a broker with TLS, logins and access control; tokens that librdkafka gets itself."""

from __future__ import annotations

import json
import re
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from compat.clients.base import wait_until
from compat.secured_broker import PREFIX, USER, SecuredBroker, Way, allowed, token
from compat.secured_clients import ConfluentSecured, Denied, oidc_settings
from compat.token_endpoint import TokenEndpoint
from compat.toolchain import tool
from penstock import Admin, Producer
from penstock.security.acl_filters import AclFilter
from penstock.security.acls import AclOperation, ResourceType
from penstock.testing.slowness import patient

WAYS = ("TLS", "mTLS", "PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
RUN_S = 100
UNSECURED = {
    "enable.sasl.oauthbearer.unsecure.jwt": "true",
    "sasl.oauthbearer.config": f"principal={USER} scope=penstock",
}
"""With these settings, the library makes its token itself, and does not sign it."""
Name = Callable[[], str]


def program() -> str:
    return tool("kcat", "apt-get install kcat")


def features() -> str:
    return subprocess.run([program(), "-V"], capture_output=True, text=True, check=False).stdout


def check_way(way: str) -> None:
    """Skips if the library of kcat cannot log in in this way.

    Before version 2.6.1 it repeated its part of the nonce in the last message of SCRAM. Kafka 4
    refuses that, and so do our brokers (librdkafka pull request 4895).
    """
    shown = features()
    found = re.search(r"librdkafka (\d+)\.(\d+)\.(\d+)", shown)
    assert found is not None, shown
    if way.startswith("SCRAM") and tuple(map(int, found.groups())) < (2, 6, 1):
        pytest.skip(f"kcat has {found[0]}, which cannot log in with SCRAM at Kafka 4 either")
    if way == "OAUTHBEARER" and "oidc" not in shown:
        pytest.skip(f"kcat has {found[0]} without OIDC, so it cannot get a signed token")


def command(way: Way, *options: str) -> list[str]:
    settings = {"security.protocol": way.protocol, "ssl.ca.location": way.authority}
    if way.certificate:
        settings |= {"ssl.certificate.location": way.certificate, "ssl.key.location": way.key}
    if way.mechanism:
        settings["sasl.mechanism"] = way.mechanism
    if way.credentials:
        settings |= oidc_settings(way.credentials)
    elif way.password:
        settings |= {"sasl.username": way.user, "sasl.password": way.password}
    flags = [flag for key, value in settings.items() for flag in ("-X", f"{key}={value}")]
    return [program(), "-b", way.bootstrap, *flags, *options]


def kcat(way: Way, *options: str, given: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(way, *options),
        input=given,
        capture_output=True,
        text=True,
        check=False,
        timeout=patient(RUN_S),
    )


@pytest.mark.parametrize("way", WAYS)
def test_kcat_does_everything_with_its_rights(
    secured: SecuredBroker, endpoint: TokenEndpoint, way: str, name: Name, other: str
) -> None:
    check_way(way)
    topic = PREFIX + name()
    with Admin(secured.plain) as admin:
        admin.create_topic(topic, partitions=1)
    access = secured.way(way).at(endpoint)
    sent = kcat(access, "-P", "-t", topic, given="one\ntwo\nthree\n")
    assert sent.returncode == 0, sent.stderr
    start = ("-X", "auto.offset.reset=earliest", "-c", "3")
    read = kcat(access, *start, "-G", topic, topic)
    assert read.stdout.split() == ["one", "two", "three"], read.stderr
    listed = json.loads(kcat(access, "-L", "-J").stdout)
    names = {each["topic"] for each in listed["topics"]}
    assert topic in names
    assert (other in names) is (way == "TLS")


@pytest.mark.parametrize("way", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_kcat_is_refused_with_a_wrong_password(secured: SecuredBroker, way: str) -> None:
    failed = kcat(replace(secured.way(way), password="wrong"), "-L", "-m", str(round(patient(30))))
    assert failed.returncode != 0
    assert "authentication failed" in failed.stderr.lower(), failed.stderr


def test_kcat_is_refused_with_a_token_without_a_signature(
    secured: SecuredBroker, other: str
) -> None:
    unsigned = [flag for key, value in UNSECURED.items() for flag in ("-X", f"{key}={value}")]
    limit = ("-X", f"message.timeout.ms={int(patient(5000))}")
    way = secured.way("OAUTHBEARER")
    failed = kcat(way, *unsigned, *limit, "-P", "-t", other, given="one\n")
    assert failed.returncode != 0
    assert "authentication failed" in failed.stderr.lower(), failed.stderr


@contextmanager
def running(way: Way, *options: str) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        command(way, *options),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        # Then what is read from it ends.
        late = threading.Timer(patient(RUN_S), process.kill)
        late.start()
        try:
            yield process
        finally:
            late.cancel()
            process.kill()


def until(lines: Iterator[str], text: str) -> str:
    """Reads until a line has this text, or to the end. Returns what was read."""
    read = ""
    for line in lines:
        read += line
        if text in line.lower():
            break
    return read


def test_a_right_that_is_taken_away_ends_while_kcat_runs(
    secured: SecuredBroker, name: Name, other: str
) -> None:
    way = secured.way("mTLS")
    rules = [
        allowed(ResourceType.TOPIC, other, operation)
        for operation in (AclOperation.READ, AclOperation.WRITE)
    ]
    reads = ("-C", "-u", "-t", other, "-p", "0", "-o", "beginning")
    with Admin(secured.plain) as admin:
        assert not any(admin.create_acls(rules).values())
        sent = kcat(way, "-P", "-t", other, given="one\n")
        assert sent.returncode == 0, sent.stderr
        with running(way, *reads) as consuming:
            assert consuming.stdout is not None
            assert consuming.stderr is not None
            assert until(consuming.stdout, "one") == "one\n"
            deleted = admin.delete_acls([AclFilter(resource_name=other)])
            assert [len(each) for each in deleted if isinstance(each, list)] == [2]
            with Producer(secured.plain) as producer:
                producer.send(other, b"secret").result()
            assert "authorization" in until(consuming.stderr, "authorization").lower()
            consuming.kill()
            assert consuming.stdout.read() == ""
    refused = kcat(way, "-P", "-t", other, given="two\n")
    assert refused.returncode != 0
    assert "authorization" in refused.stderr.lower()


def test_librdkafka_gets_its_token_from_an_endpoint(
    secured: SecuredBroker, endpoint: TokenEndpoint, name: Name
) -> None:
    """confluent-kafka has a library with OIDC."""
    client = ConfluentSecured(secured.way("OAUTHBEARER").at(endpoint))
    topic, asked = PREFIX + name(), endpoint.asked.total()
    client.create_topic(topic)
    client.produce(topic, [b"one"])
    assert client.consume(topic, topic, 1) == [b"one"]
    assert wait_until(lambda: topic in client.topics())
    assert endpoint.asked.total() > asked


def test_librdkafka_is_refused_with_a_bad_token_from_an_endpoint(
    secured: SecuredBroker, endpoint: TokenEndpoint, other: str
) -> None:
    """The library does not use an expired token, so this one has a wrong signature."""
    bad = replace(secured.way("OAUTHBEARER"), token=token()[:-8] + "AAAAAAAA")
    with pytest.raises(Denied):
        ConfluentSecured(bad.at(endpoint)).topics()
