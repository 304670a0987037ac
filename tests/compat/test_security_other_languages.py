"""kcat, Java and kafkajs on a broker with TLS, logins and access control."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from compat.java_build import VERSIONS, compiled
from compat.secured_broker import PREFIX, SecuredBroker, Way
from compat.test_kafkajs import PACKAGES
from compat.toolchain import HERE, java_flags, node_modules, run_scenario, tool
from penstock import Admin
from penstock.testing.slowness import patient

WAYS = ("TLS", "mTLS", "PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
PASSWORD_WAYS = ("PLAIN", "SCRAM-SHA-512")
RUN_S = 100
Name = Callable[[], str]
Steps = dict[str, Any]


@pytest.fixture
def other(secured: SecuredBroker, name: Name) -> str:
    """A topic that the user may not use."""
    made = name()
    with Admin(secured.plain) as admin:
        admin.create_topic(made, partitions=1)
    return made


def expected(way: str, forbidden: str) -> Steps:
    """Clients without a login may do everything."""
    steps = {
        "create": "ok",
        "produce": "ok",
        "consume": "one two three",
        "list": "ok",
        "other": "ok" if way == "TLS" else forbidden,
    }
    return {step: {"result": result} for step, result in steps.items()}


def kcat(way: Way, *options: str, given: str = "") -> subprocess.CompletedProcess[str]:
    settings = {"security.protocol": way.protocol, "ssl.ca.location": way.authority}
    if way.certificate:
        settings |= {"ssl.certificate.location": way.certificate, "ssl.key.location": way.key}
    if way.user:
        settings |= {
            "sasl.mechanism": way.mechanism,
            "sasl.username": way.user,
            "sasl.password": way.password,
        }
    flags = [flag for key, value in settings.items() for flag in ("-X", f"{key}={value}")]
    return subprocess.run(
        [tool("kcat", "apt-get install kcat"), "-b", way.bootstrap, *flags, *options],
        input=given,
        capture_output=True,
        text=True,
        check=False,
        timeout=patient(RUN_S),
    )


def check_scram_of_kcat(way: str) -> None:
    """Skips if the library of kcat cannot log in with SCRAM.

    Before version 2.6.1 it repeated its part of the nonce in its last message. Kafka 4 refuses
    that, and so do our brokers (librdkafka pull request 4895).
    """
    program = tool("kcat", "apt-get install kcat")
    shown = subprocess.run([program, "-V"], capture_output=True, text=True, check=False).stdout
    found = re.search(r"librdkafka (\d+)\.(\d+)\.(\d+)", shown)
    assert found is not None, shown
    if way.startswith("SCRAM") and tuple(map(int, found.groups())) < (2, 6, 1):
        pytest.skip(f"kcat has {found[0]}, which cannot log in with SCRAM at Kafka 4 either")


@pytest.mark.parametrize("way", WAYS)
def test_kcat_does_everything_with_its_rights(
    secured: SecuredBroker, way: str, name: Name, other: str
) -> None:
    check_scram_of_kcat(way)
    topic = PREFIX + name()
    with Admin(secured.plain) as admin:
        admin.create_topic(topic, partitions=1)
    access = secured.way(way)
    sent = kcat(access, "-P", "-t", topic, given="one\ntwo\nthree\n")
    assert sent.returncode == 0, sent.stderr
    start = ("-X", "auto.offset.reset=earliest", "-c", "3")
    read = kcat(access, *start, "-G", topic, topic)
    assert read.stdout.split() == ["one", "two", "three"], read.stderr
    listed = json.loads(kcat(access, "-L", "-J").stdout)
    names = {each["topic"] for each in listed["topics"]}
    assert topic in names
    assert (other in names) is (way == "TLS")


@pytest.mark.parametrize("way", PASSWORD_WAYS)
def test_kcat_is_refused_with_a_wrong_password(secured: SecuredBroker, way: str) -> None:
    failed = kcat(replace(secured.way(way), password="wrong"), "-L", "-m", "10")
    assert failed.returncode != 0
    assert "authentication failed" in failed.stderr.lower(), failed.stderr


@pytest.fixture(scope="module", params=VERSIONS)
def java(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    return compiled(request.param, tmp_path_factory.mktemp(f"java-{request.param}"), "Secured")


def java_steps(class_path: str, way: Way, topic: str, other: str, directory: Path) -> Steps:
    modules = "org.apache.kafka.common.security."
    lines = {
        "bootstrap.servers": way.bootstrap,
        "security.protocol": way.protocol,
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": way.authority,
    }
    if way.certificate:
        both = directory / "keystore.pem"
        both.write_text(Path(way.key).read_text() + Path(way.certificate).read_text())
        lines |= {"ssl.keystore.type": "PEM", "ssl.keystore.location": str(both)}
    if way.user:
        module = "plain.Plain" if way.mechanism == "PLAIN" else "scram.Scram"
        lines |= {
            "sasl.mechanism": way.mechanism,
            "sasl.jaas.config": f"{modules}{module}LoginModule required "
            f'username="{way.user}" password="{way.password}";',
        }
    path = directory / "client.properties"
    path.write_text("".join(f"{key}={value}\n" for key, value in lines.items()))
    return run_scenario(
        ["java", *java_flags(), "-cp", class_path, "Secured", str(path), topic, other]
    )


@pytest.mark.parametrize("way", WAYS)
def test_java_does_everything_with_its_rights(
    secured: SecuredBroker, java: str, way: str, name: Name, other: str, tmp_path: Path
) -> None:
    steps = java_steps(java, secured.way(way), PREFIX + name(), other, tmp_path)
    assert steps == expected(way, "TopicAuthorizationException")


def test_java_is_refused_with_a_wrong_password(
    secured: SecuredBroker, java: str, name: Name, other: str, tmp_path: Path
) -> None:
    wrong = replace(secured.way("SCRAM-SHA-256"), password="wrong")
    steps = java_steps(java, wrong, PREFIX + name(), other, tmp_path)
    refused = {"result": "SaslAuthenticationException"}
    assert steps == dict.fromkeys(("create", "produce", "consume", "list", "other"), refused)


def kafkajs_steps(way: Way, topic: str, other: str) -> Steps:
    options: dict[str, Any] = {"bootstrap": way.bootstrap, "ca": way.authority}
    if way.certificate:
        options |= {"certificate": way.certificate, "key": way.key}
    if way.user:
        mechanism = way.mechanism.lower()
        options["sasl"] = {
            "mechanism": mechanism,
            "username": way.user,
            "password": way.password,
        }
    extra = {
        "NODE_PATH": str(node_modules(PACKAGES)),
        "KAFKAJS_NO_PARTITIONER_WARNING": "1",
        "NODE_NO_WARNINGS": "1",
    }
    script = str(HERE / "node" / "secured.js")
    return run_scenario(["node", script, json.dumps(options), topic, other], extra)


@pytest.mark.parametrize("way", WAYS)
def test_kafkajs_does_everything_with_its_rights(
    secured: SecuredBroker, way: str, name: Name, other: str
) -> None:
    steps = kafkajs_steps(secured.way(way), PREFIX + name(), other)
    assert steps == expected(way, "TOPIC_AUTHORIZATION_FAILED")


@pytest.mark.parametrize("way", PASSWORD_WAYS)
def test_kafkajs_is_refused_with_a_wrong_password(
    secured: SecuredBroker, way: str, name: Name, other: str
) -> None:
    wrong = replace(secured.way(way), password="wrong")
    steps = kafkajs_steps(wrong, PREFIX + name(), other)
    assert {each["result"] for each in steps.values()} == {"KafkaJSSASLAuthenticationError"}
