"""Sends damaged frames to a broker before and during authentication, and checks that it stays
healthy.

Each connection takes some correct steps of a login, and then sends damaged ones: requests of logins
and of every other API, tokens without a header, wrong passwords and bad tokens. Some connections
log in, and send damaged requests while they authenticate again. It checks:

- The result of a frame is an answer with a correct length, no answer, or a ProtocolError. No other
  exception occurs, not even one that was logged.
- Nobody is authenticated but those with a password.
- At the end no login waits, no task and no timer stays, and memory has not grown.

Run it for longer: `PYTHONPATH=tests python -m broker.listeners.login_fuzzing --frames 1000000`
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import logging
import random
import resource
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from broker.fuzz_corpus import corpus, get_to_know, mutate
from broker.fuzzing import Findings, _LoggedErrors, describe, run
from broker.harness import BrokerHarness, open_harness
from penstock.broker.listeners.sasl_login import LoginService, SaslLogin
from penstock.security.oauthbearer import client_message as token_message
from penstock.security.plain import client_message
from penstock.security.scram import ScramClient, nonce_text
from penstock.security.scram_credentials import ScramMechanism
from penstock.testing.slowness import patient
from penstock.wire.codec import encode_request
from penstock.wire.errors import ProtocolError
from penstock.wire.messages import (
    ApiVersionsRequest,
    SaslAuthenticateRequest,
    SaslHandshakeRequest,
)
from penstock.wire.messages.base import Request
from security.signed_tokens import good_token, jwk, make

from .connections import SASL_SETTINGS, Connection
from .test_hostile_logins import login_service

USER, PASSWORD = "carol", "pw"
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
FRAMES_PER_CONNECTION = 6
OPEN_MAX = 200
"""Connections that are open at the same time. The oldest one then disconnects."""
GROWTH_MIB_MAX = 64


@dataclass
class LoginFindings(Findings):
    connections: int = 0
    logins: int = 0
    growth_mib: float = 0.0


def settings(keys: Path) -> dict[str, str]:
    prefix = "listener.name.login.oauthbearer.sasl.oauthbearer."
    module = "org.apache.kafka.common.security.plain.PlainLoginModule"
    return SASL_SETTINGS | {
        "connection.failed.authentication.delay.ms": "1",
        "connections.max.reauth.ms": "3600000",
        "listener.name.login.sasl.enabled.mechanisms": ",".join(MECHANISMS),
        "listener.name.login.plain.sasl.jaas.config": (
            f'{module} required user_{USER}="{PASSWORD}";'
        ),
        f"{prefix}jwks.endpoint.url": f"file://{keys}",
        f"{prefix}expected.issuer": "https://issuer.example",
        f"{prefix}expected.audience": "penstock",
    }


def framed(request: Request, version: int) -> bytes:
    return b"".join(encode_request(request, version, 1, "fuzz"))[4:]


def tokens() -> list[bytes]:
    """Returns tokens that are all bad, though only just."""
    scram = ScramClient(ScramMechanism.SHA_256, USER, PASSWORD, nonce_text(bytes(24)))
    return [
        client_message(USER, "wrong"),
        client_message("nobody", PASSWORD),
        scram.first(),
        b"n,,n=carol,r=" + b"r" * 40,
        b"c=biws,r=" + b"r" * 64 + b",p=" + b"A" * 43 + b"=",
        token_message(good_token().decode()),
        token_message(make(kid="unknown").decode()),
        b"\x01",
        b"",
        bytes(300),
    ]


class _Fuzzer:
    def __init__(
        self, harness: BrokerHarness, others: Sequence[bytes], seed: str, findings: LoginFindings
    ) -> None:
        self._harness = harness
        self._chance = random.Random(seed)
        self._findings = findings
        self.logged = _LoggedErrors(findings)
        self._tokens = tokens()
        shakes = [framed(SaslHandshakeRequest(each), v) for each in MECHANISMS for v in (0, 1)]
        answers = [
            framed(SaslAuthenticateRequest(each), v) for each in self._tokens for v in (0, 1, 2)
        ]
        versions = [framed(ApiVersionsRequest("fuzz", "1"), v) for v in (0, 3, 4)]
        self._login_frames = [*shakes, *answers, *versions]
        self._others = others
        self.open: list[Connection] = []

    async def converse(self) -> None:
        """Opens a connection, and sends some frames."""
        chance, findings = self._chance, self._findings
        connection = Connection(self._harness)
        findings.connections += 1
        self.open.append(connection)
        if chance.random() < 0.1:
            findings.logins += 1
            assert (await connection.plain(USER, PASSWORD)).error_code == 0
        elif chance.random() < 0.7:
            await self._send(connection, framed(ApiVersionsRequest("fuzz", "1"), 3))
            if chance.random() < 0.9:
                handshake = SaslHandshakeRequest(chance.choice(MECHANISMS))
                await self._send(connection, framed(handshake, chance.randrange(2)))
        is_logged_in = connection.session._inner is not None  # type: ignore[attr-defined]
        for _ in range(chance.randint(1, FRAMES_PER_CONNECTION)):
            if connection.is_closed:
                break
            await self._send(connection, self._frame(is_logged_in))
        if len(self.open) > OPEN_MAX or connection.is_closed:
            gone = connection if connection.is_closed else self.open[0]
            self.open.remove(gone)
            gone.session.on_closed()

    def _frame(self, is_logged_in: bool) -> bytearray:
        chance = self._chance
        draw = chance.random()
        if draw < 0.2:
            return bytearray(chance.choice(self._tokens))
        # Other requests of a client that has logged in are served: `broker.fuzzing` has those.
        if draw < 0.7 or is_logged_in:
            source = chance.choice(self._login_frames)
            if is_logged_in:
                # Not a damaged API key: the request would be another, of a client that may send it.
                return bytearray(source[:4]) + mutate(source[4:], self._login_frames, chance)
            return mutate(source, self._login_frames, chance)
        return mutate(chance.choice(self._others), self._others, chance)

    async def _send(self, connection: Connection, frame: bytes | bytearray) -> None:
        findings = self._findings
        findings.frames += 1
        self.logged.frame = bytes(frame)
        try:
            answer: Any = connection.session.on_frame(memoryview(bytearray(frame)))
            if isinstance(answer, asyncio.Future):
                findings.waited += 1
                if self._chance.random() < 0.1:
                    # It disconnects while it waits.
                    connection.session.on_closed()
                    connection.is_closed = True
                    return
                async with asyncio.timeout(patient(30)):
                    answer = await answer
        except ProtocolError:
            findings.refused += 1
            connection.is_closed = True
            return
        except BaseException as error:  # noqa: BLE001 - any exception is a finding
            findings.fail_with(error, self.logged.frame)
            connection.is_closed = True
            return
        if answer is not None:
            findings.answered += 1
            data = b"".join(answer)
            if int.from_bytes(data[:4], "big") != len(data) - 4:
                findings.fail("length", describe(frame))


def _write_keys(directory: str) -> Path:
    path = Path(directory, "keys.json")
    path.write_text(json.dumps({"keys": [jwk("RS256")]}))
    return path


async def fuzz(frames: int, seed: int) -> LoginFindings:
    """Sends this many frames to a broker in this process."""
    findings = LoginFindings()
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as directory:
        keys = _write_keys(directory)
        async with open_harness(Path(directory), kafka=settings(keys)) as harness:
            known = await get_to_know(harness.ask)
            others = await asyncio.to_thread(corpus, known, seed, 1)
            fuzzer = _Fuzzer(harness, others, f"logins {seed}", findings)
            logger = logging.getLogger("penstock")
            logger.addHandler(fuzzer.logged)
            try:
                await _play(harness, fuzzer, frames, findings)
            finally:
                logger.removeHandler(fuzzer.logged)
    findings.seconds = round(time.perf_counter() - began, 1)
    return findings


async def _play(
    harness: BrokerHarness, fuzzer: _Fuzzer, frames: int, findings: LoginFindings
) -> None:
    service = login_service(harness)
    tasks, before = len(asyncio.all_tasks()), 0.0
    while findings.frames < frames:
        await fuzzer.converse()
        if not before and findings.frames > frames // 4:
            before = _resident_mib()
    findings.growth_mib = round(_resident_mib() - before, 1)
    for each in fuzzer.open:
        each.session.on_closed()
    await asyncio.sleep(0)
    _check_end(service, fuzzer, findings, len(asyncio.all_tasks()) - tasks)


def _check_end(service: LoginService, fuzzer: _Fuzzer, findings: LoginFindings, tasks: int) -> None:
    if service.successes != findings.logins:
        findings.fail("logins", f"{service.successes} succeeded, {findings.logins} should have")
    if service.work.waiting:
        findings.fail("waiting", f"{service.work.waiting} logins wait")
    if tasks > 2:  # the broker's own may come and go
        findings.fail("tasks", f"{tasks} tasks stay")
    for each in fuzzer.open:
        if isinstance(each.session, SaslLogin) and each.session._timer is not None:
            findings.fail("timers", "a timer stays after the end of its connection")
    if findings.growth_mib > GROWTH_MIB_MAX:
        findings.fail("memory", f"grew by {findings.growth_mib} MiB")


def _resident_mib() -> float:
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * resource.getpagesize() / (1 << 20)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--frames", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    findings: LoginFindings = run(fuzz(options.frames, options.seed))
    for kind, detail in findings.failures.items():
        print(f"--- {kind}\n{detail}", file=sys.stderr)
    report = asdict(findings) | {"failures": list(findings.failures)}
    report["resident_max_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    print(json.dumps(report))
    return 1 if findings.failures else 0


if __name__ == "__main__":
    sys.exit(main())
