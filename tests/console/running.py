"""Runs real brokers and a real console for tests, each in its own process."""

from __future__ import annotations

import http.client
import json
import os
import selectors
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlencode, urlsplit

from penstock.runtime import SystemClock
from penstock.testing.broker import Broker
from penstock.testing.slowness import patient

READY_S = 150.0


@contextmanager
def brokers(directory: Path, count: int) -> Iterator[list[Broker]]:
    """Runs a cluster whose first broker has all committed offsets, so that
    the others may be killed."""
    with ExitStack() as stack:
        started = []
        for number in range(count):
            settings = {
                "broker_id": str(number),
                "store": str(directory / "metadata.db"),
                "offsets.topic.replication.factor": "1",
                "offsets.topic.num.partitions": "2",
                "share.coordinator.state.topic.num.partitions": "1",
                "share.coordinator.state.topic.replication.factor": str(count),
                "share.coordinator.state.topic.min.isr": "1",
                "num.partitions": "1",
                "broker.session.timeout.ms": str(int(min(30_000, patient(15_000)))),
                # Some tests write records with old timestamps, which retention would delete.
                "log.retention.check.interval.ms": "86400000",
            }
            broker = Broker(settings, data=str(directory / f"broker-{number}"))
            started.append(stack.enter_context(broker))
        yield started


@contextmanager
def running_console(
    bootstrap: str, *options: str, environment: Mapping[str, str] | None = None
) -> Iterator[str]:
    """Runs a console and yields the URL that it printed."""
    command = [sys.executable, "-m", "penstock.console.main", "--bootstrap", bootstrap]
    with running([*command, "--port", "0", "--stop-with-stdin", *options], environment) as url:
        yield url


@contextmanager
def running(command: list[str], environment: Mapping[str, str] | None = None) -> Iterator[str]:
    """Runs a program that prints `console URL` and ends with its standard input."""
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[1],
        env={**os.environ, **(environment or {})},
    )
    assert process.stdout is not None
    assert process.stdin is not None
    try:
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            assert selector.select(patient(READY_S)), "the console did not get ready"
        line = process.stdout.readline()
        assert line.startswith("console http"), line
        yield line.removeprefix("console ").strip()
    finally:
        process.stdin.close()
        try:
            process.wait(patient(120))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes
    cookies: tuple[str, ...] = ()
    """All cookies that are set."""

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> str:
        return str(self.json["error"])


@dataclass
class Browserless:
    """An HTTP client that is not a browser: it chooses every header itself."""

    url: str
    cookie: str = ""
    csrf: str = ""
    headers: dict[str, str] = field(default_factory=dict)
    tls: ssl.SSLContext | None = None

    def send(
        self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None
    ) -> Answer:
        address = urlsplit(self.url)
        sent = {**self.headers, **(headers or {})}
        if self.cookie:
            sent.setdefault("cookie", self.cookie)
        if self.csrf:
            sent.setdefault("x-csrf-token", self.csrf)
        data = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        if data is not None:
            sent.setdefault("content-type", "application/json")
        connection = self._connection(address.hostname or "", address.port)
        try:
            connection.request(method, path, data, sent)
            response = connection.getresponse()
            return Answer(
                response.status,
                {name.lower(): value for name, value in response.getheaders()},
                response.read(),
                tuple(response.headers.get_all("set-cookie") or ()),
            )
        finally:
            connection.close()

    def _connection(self, host: str, port: int | None) -> http.client.HTTPConnection:
        if self.tls is None:
            return http.client.HTTPConnection(host, port, timeout=patient(120))
        return http.client.HTTPSConnection(host, port, timeout=patient(120), context=self.tls)

    def get(self, path: str, **headers: str) -> Answer:
        return self.send("GET", path, headers=headers)

    def post(self, path: str, body: Any) -> Answer:
        return self.send("POST", path, body)

    def upload(self, path: str, archive: bytes, asked: Mapping[str, Any]) -> Answer:
        """Sends an archive, as the form that deploys a project does."""
        headers = {"content-type": "application/zip"}
        return self.send("POST", f"{path}?{urlencode(asked, doseq=True)}", archive, headers)

    def log_in(self, token: str | None = None) -> Answer:
        return self._begin({} if token is None else {"token": token})

    def sign_in(self, user: str, password: str) -> Answer:
        return self._begin({"user": user, "password": password})

    def _begin(self, body: Any) -> Answer:
        answer = self.post("/api/session", body)
        if answer.status == 200:
            self.cookie = answer.headers["set-cookie"].partition(";")[0]
            self.csrf = answer.json["csrf"]
        return answer


class Stalls:
    """Measures for how long the machine let nobody run, with a thread that always wants to."""

    _TURN_S = 0.02

    def __init__(self) -> None:
        self.seconds = 0.0
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="stalls")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._end.is_set():
            began = time.monotonic()
            self._end.wait(self._TURN_S)
            self.seconds += max(0.0, time.monotonic() - began - 2 * self._TURN_S)


def eventually(look: Any, seconds: float = 60.0) -> Any:
    """Calls `look` until it returns something true, and returns that."""
    clock = SystemClock()
    began = clock.monotonic()
    while not (found := look()):
        assert clock.monotonic() < began + patient(seconds), "it did not come about in time"
        time.sleep(0.05)
    return found
