"""The Java client creates a delegation token and logs in with it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from compat.foreign_clients import java_program
from compat.java_build import VERSIONS
from compat.secured_broker import PREFIX, SecuredBroker
from compat.toolchain import run_scenario
from penstock import Admin


@pytest.mark.parametrize("version", VERSIONS)
def test_the_java_client_uses_delegation_tokens(
    secured: SecuredBroker, version: str, name: Callable[[], str], tmp_path: Path
) -> None:
    topic = PREFIX + name()
    with Admin(secured.plain) as admin:
        admin.create_topic(topic, 1, 1)
    program, extra = java_program("Tokens", version, secured.way("SCRAM-SHA-512"), tmp_path)
    found = run_scenario([*program, topic], extra)
    refused = "UnsupportedByAuthenticationException"
    assert {step: each["result"] for step, each in found.items()} == {
        "create": "User:alice",
        "describe": "User:bob",
        "produce SCRAM-SHA-256": "ok",
        "create again SCRAM-SHA-256": refused,
        "produce SCRAM-SHA-512": "ok",
        "create again SCRAM-SHA-512": refused,
        "renew": "ok",
        "expire": "ok",
        "produce afterwards": "SaslAuthenticationException",
        "renew afterwards": "DelegationTokenNotFoundException",
    }
