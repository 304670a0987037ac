"""How to start our programs in Java, JavaScript and Go that use a secured broker.

Each prints what happened, one JSON object per step.
"""

from __future__ import annotations

import json
import os
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from compat.java_build import VERSIONS, compiled
from compat.secured_broker import Way
from compat.test_kafkajs import PACKAGES
from compat.toolchain import HERE, go_program, java_flags, node_modules, run_scenario
from penstock.testing.slowness import patient, slowness

LIVE_S = 150
Steps = dict[str, Any]
Command = tuple[list[str], Mapping[str, str]]
"""A program with its first arguments, and its environment."""


@dataclass(frozen=True)
class Kind:
    name: str
    forbidden: str
    """The error of a user without the right to a topic."""
    denied: str
    """The error of a login with a wrong password."""
    denied_token: frozenset[str]
    """The possible errors of a login with a token that expired."""
    command: Callable[[Way, Path], Command]


@dataclass(frozen=True)
class ForeignClient:
    kind: Kind
    directory: Path

    def steps(self, way: Way, topic: str, other: str) -> Steps:
        program, environment = self.kind.command(way, self.directory)
        found = run_scenario([*program, topic, other], environment)
        return {step: each["result"] for step, each in found.items()}

    @contextmanager
    def live(self, way: Way, group: str, topic: str) -> Iterator[LiveProgram]:
        """Runs the program that uses a topic, waits, and uses it again."""
        program, environment = self.kind.command(way, self.directory)
        process = subprocess.Popen(
            [*program, group, topic, "live"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "SLOWNESS": f"{slowness():.1f}", **environment},
        )
        end = threading.Timer(patient(LIVE_S), process.kill)
        end.start()
        try:
            yield LiveProgram(process)
        finally:
            end.cancel()
            process.kill()
            process.communicate()


class LiveProgram:
    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def before(self) -> Steps:
        """Returns the steps until the program waits."""
        return dict(self._steps())

    def after(self) -> Steps:
        """Tells the program to go on, and returns its further steps."""
        assert self._process.stdin is not None
        self._process.stdin.write("go on\n")
        self._process.stdin.flush()
        return dict(self._steps())

    def _steps(self) -> Iterator[tuple[str, Any]]:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if not line.startswith("{"):
                continue
            step = json.loads(line)
            if step["step"] == "ready":
                return
            yield step["step"], step["result"]


def _java(version: str, way: Way, directory: Path) -> Command:
    return java_program("Secured", version, way, directory)


def java_program(name: str, version: str, way: Way, directory: Path) -> Command:
    """Returns how to start a Java program whose first argument is a file of properties."""
    path = compiled(version, directory, name, reads_tokens=True)
    lines = _java_tls(way, directory) | _java_login(way)
    config = directory / "client.properties"
    config.write_text("".join(f"{key}={value}\n" for key, value in lines.items()))
    flags = java_flags()
    if way.credentials:
        flags.append(f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={way.credentials.url}")
    return ["java", *flags, "-cp", path, name, str(config)], {}


def _java_tls(way: Way, directory: Path) -> dict[str, str]:
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
    return lines


def _java_login(way: Way) -> dict[str, str]:
    modules = "org.apache.kafka.common.security."
    if credentials := way.credentials:
        return {
            "sasl.mechanism": way.mechanism,
            "sasl.oauthbearer.token.endpoint.url": credentials.url,
            "sasl.login.callback.handler.class": (
                f"{modules}oauthbearer.OAuthBearerLoginCallbackHandler"
            ),
            "sasl.jaas.config": f"{modules}oauthbearer.OAuthBearerLoginModule required "
            f'clientId="{credentials.client_id}" clientSecret="{credentials.secret}";',
        }
    if way.user:
        module = "plain.Plain" if way.mechanism == "PLAIN" else "scram.Scram"
        return {
            "sasl.mechanism": way.mechanism,
            "sasl.jaas.config": f"{modules}{module}LoginModule required "
            f'username="{way.user}" password="{way.password}";',
        }
    return {}


def _kafkajs(way: Way, _directory: Path) -> Command:
    options: dict[str, Any] = {"bootstrap": way.bootstrap, "ca": way.authority}
    if way.certificate:
        options |= {"certificate": way.certificate, "key": way.key}
    if way.token:
        options["token"] = way.token
    elif way.user:
        options["sasl"] = {
            "mechanism": way.mechanism.lower(),
            "username": way.user,
            "password": way.password,
        }
    extra = {
        "NODE_PATH": str(node_modules(PACKAGES)),
        "KAFKAJS_NO_PARTITIONER_WARNING": "1",
        "NODE_NO_WARNINGS": "1",
    }
    return ["node", str(HERE / "node" / "secured.js"), json.dumps(options)], extra


def _franz_go(way: Way, directory: Path) -> Command:
    options = {
        "bootstrap": way.bootstrap,
        "ca": way.authority,
        "certificate": way.certificate,
        "key": way.key,
        "mechanism": way.mechanism,
        "user": way.user,
        "password": way.password,
        "token": way.token,
    }
    return [go_program("secured", directory), json.dumps(options)], {}


_JAVA_DENIED = "SaslAuthenticationException"
KINDS = [
    *(
        Kind(
            f"Java {version}",
            "TopicAuthorizationException",
            _JAVA_DENIED,
            frozenset({_JAVA_DENIED}),
            partial(_java, version),
        )
        for version in VERSIONS
    ),
    Kind(
        "kafkajs",
        "TOPIC_AUTHORIZATION_FAILED",
        "KafkaJSSASLAuthenticationError",
        # It takes the first answer to a bad token for a success, and its next request is refused.
        frozenset(
            {
                "ILLEGAL_SASL_STATE",
                "KafkaJSConnectionClosedError",
                "KafkaJSNumberOfRetriesExceeded",
                "KafkaJSSASLAuthenticationError",
            }
        ),
        _kafkajs,
    ),
    Kind(
        "franz-go",
        "TOPIC_AUTHORIZATION_FAILED",
        "SASL_AUTHENTICATION_FAILED",
        # It does not expect the JSON that Kafka sends with the refusal.
        frozenset({"unexpected data in oauth response"}),
        _franz_go,
    ),
]
