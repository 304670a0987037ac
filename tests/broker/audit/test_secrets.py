"""No password, token or hash appears in anything that the audit record writes."""

from __future__ import annotations

import asyncio
import base64
import json
import time
from pathlib import Path

import pytest

from broker.harness import BrokerHarness, open_harness
from broker.listeners.connections import SASL_SETTINGS, Connection, add_user
from penstock.security.oauthbearer import client_message as bearer_message
from penstock.security.scram_credentials import ScramMechanism, password_hash
from penstock.testing.slowness import patient
from penstock.wire.errors import ProtocolError
from penstock.wire.messages import MetadataRequest, MetadataResponse
from security import signed_tokens

from .audited import read_log, written

PASSWORD = "correct-horse-battery"
WRONG = "wrong-staple"


def settings(directory: Path) -> dict[str, str]:
    keys = directory / "keys.json"
    keys.write_text(json.dumps({"keys": [signed_tokens.jwk("RS256")]}))
    prefix = "listener.name.login."
    return SASL_SETTINGS | {
        f"{prefix}sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER",
        f"{prefix}oauthbearer.sasl.oauthbearer.jwks.endpoint.url": keys.as_uri(),
        f"{prefix}oauthbearer.sasl.oauthbearer.expected.issuer": "https://issuer.example",
        f"{prefix}oauthbearer.sasl.oauthbearer.expected.audience": "penstock",
    }


async def bearer(harness: BrokerHarness, token: str) -> int:
    connection = Connection(harness)
    assert (await connection.shake("OAUTHBEARER")).error_code == 0
    answer = await connection.token(bearer_message(token))
    if answer.auth_bytes:
        # The server has sent the reason (RFC 7628). The client must confirm it.
        answer = await connection.token(b"\x01")
    return answer.error_code


async def log_in_by_all_mechanisms(harness: BrokerHarness) -> list[str]:
    """Logs in with each mechanism, rightly and wrongly. Returns all secrets that were used."""
    now_s = int(time.time())
    claims = dict(signed_tokens.CLAIMS) | {"iat": now_s - 60, "exp": now_s + 600}
    token = signed_tokens.make(claims).decode()
    bad = signed_tokens.make(claims | {"aud": "others"}).decode()
    secrets = [PASSWORD, WRONG, *token.split("."), *bad.split(".")]
    for mechanism in ScramMechanism:
        await add_user(harness, "alice", PASSWORD, mechanism)
        hashed = password_hash(mechanism, PASSWORD, b"a salt of a user", 4096).run()
        secrets += [hashed.hex(), base64.b64encode(hashed).decode()]
        assert (await Connection(harness).scram("alice", PASSWORD, mechanism)).error_code == 0
        assert (await Connection(harness).scram("alice", WRONG, mechanism)).error_code
        await harness.broker.audit.finish()  # Else the next login is combined with this one.
    assert (await Connection(harness).plain("alice", PASSWORD)).error_code == 0
    assert (await Connection(harness).plain("nobody", WRONG)).error_code
    await harness.broker.audit.finish()
    assert await bearer(harness, token) == 0
    assert await bearer(harness, bad) != 0
    return secrets


def test_no_secret_is_written_by_a_login_with_any_mechanism(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def run() -> None:
        opening = open_harness(tmp_path, 1, settings(tmp_path))
        async with asyncio.timeout(patient(100)), opening as harness:
            secrets = await log_in_by_all_mechanisms(harness)
            events = await written(harness)
            logins = {
                (each.user, each.outcome.value, each.detail, each.rule)
                for each in events
                if each.action == "login"
            }
            denied = "unknown user or wrong password"
            assert logins == {
                ("alice", "allowed", "mechanism SCRAM-SHA-256", None),
                ("alice", "allowed", "mechanism SCRAM-SHA-512", None),
                ("alice", "allowed", "mechanism PLAIN", None),
                ("alice", "allowed", "mechanism OAUTHBEARER", None),
                ("alice", "denied", "mechanism SCRAM-SHA-256", denied),
                ("alice", "denied", "mechanism SCRAM-SHA-512", denied),
                ("nobody", "denied", "mechanism PLAIN", denied),
                (None, "denied", "mechanism OAUTHBEARER", "token not accepted"),
            }
            text = read_log(harness.disks[0]) + caplog.text
            assert "SCRAM-SHA-256" in text
            assert [secret for secret in secrets if secret in text] == []

    asyncio.run(run())


def test_clients_that_do_not_log_in_are_recorded(tmp_path: Path) -> None:
    async def run() -> None:
        opening = open_harness(tmp_path, 1, SASL_SETTINGS)
        async with asyncio.timeout(patient(100)), opening as harness:
            with pytest.raises(ProtocolError):
                await Connection(harness).ask(MetadataRequest(), 12, MetadataResponse)
            harness.broker.server.admission.connections_max = 0
            assert not harness.broker.server.admission.admit("192.0.2.9", 0.0, "LOGIN")
            events = await written(harness)
            assert [(each.action, each.address, each.listener, each.rule) for each in events] == [
                ("login", "192.0.2.1", "LOGIN", "message not valid"),
                ("connection.refused", "192.0.2.9", "LOGIN", "max.connections"),
            ]

    asyncio.run(run())
