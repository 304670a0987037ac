"""Tests how OpenLineage events are sent: to a real HTTP server, a file and a topic."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from penstock import Consumer
from penstock.client.environment import default_environment
from penstock.runtime import Threads
from penstock.spark.deployments.lineage import emitter
from penstock.spark.deployments.lineage.emitter import (
    API_KEY_VARIABLE,
    QUEUE_MAX,
    Emitter,
    NotSent,
    checked,
)
from penstock.spark.deployments.lineage.worker_lineage import Lineage
from penstock.spark.pipelines.errors import PipelineError
from penstock.testing import Broker
from penstock.testing.slowness import patient

WAIT_S = 120.0


@pytest.fixture
def enough_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that ends waits for its last events as long as a busy machine needs."""
    monkeypatch.setattr(emitter, "_CLOSE_S", patient(60.0))


@contextmanager
def endpoint(*statuses: int) -> Iterator[tuple[str, list[tuple[str, str, Any]]]]:
    """Answers with these statuses, one after the other, then with 201."""
    received: list[tuple[str, str, Any]] = []
    left = [*statuses]

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            received.append((self.path, self.headers.get("Authorization", ""), body))
            self.send_response(left.pop(0) if left else 201)
            self.send_header("Location", "/elsewhere")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", received
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def run_pipeline(target: str, bootstrap: str = "broker-0:9092") -> Emitter:
    """Sends the events of a short run."""

    async def main() -> Emitter:
        threads = Threads(1)
        lineage = Lineage(target, bootstrap, default_environment(), threads)
        async with asyncio.timeout(patient(WAIT_S)), lineage.running():
            of_views = lineage.of("views")
            of_views.on_event({"event": "ready"})
            of_views.on_end(completed=False, error="it failed")
        threads.close()
        return lineage.emitter

    return asyncio.run(main())


@pytest.mark.usefixtures("enough_time")
def test_events_are_posted_with_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(API_KEY_VARIABLE, "secret-key")
    with endpoint() as (url, received):
        made = run_pipeline(url)
    assert [path for path, _, _ in received] == ["/api/v1/lineage"] * 2
    assert {key for _, key, _ in received} == {"Bearer secret-key"}
    assert [event["eventType"] for _, _, event in received] == ["START", "FAIL"]
    assert (made.sent, made.dropped) == (2, 0)


@pytest.mark.usefixtures("enough_time")
def test_an_endpoint_that_fails_once_gets_the_event_again() -> None:
    with endpoint(500) as (url, received):
        made = run_pipeline(f"{url}/other/path")
    assert [event["eventType"] for _, _, event in received[:2]] == ["START"] * 2
    assert {path for path, _, _ in received} == {"/other/path"}
    assert (made.sent, made.dropped) == (2, 0)


def test_redirects_are_not_followed_and_events_that_cannot_be_sent_are_counted() -> None:
    """Also those that wait when the worker ends."""
    with endpoint(*[302] * 100) as (url, received):
        made = run_pipeline(url)
    assert {path for path, _, _ in received} == {"/api/v1/lineage"}
    assert (made.sent, made.dropped) == (0, 2)


@pytest.mark.usefixtures("enough_time")
def test_events_are_appended_to_a_file(tmp_path: Path) -> None:
    file = tmp_path / "lineage.jsonl"
    for target in (str(file), f"file://{file}"):
        assert run_pipeline(target).sent == 2
    kinds = [json.loads(line)["eventType"] for line in file.read_text().splitlines()]
    assert kinds == ["START", "FAIL"] * 2


@pytest.mark.usefixtures("enough_time")
def test_events_are_records_of_a_topic(broker: Broker) -> None:
    topic = broker.new_topic()
    assert run_pipeline(f"topic:{topic}", broker.bootstrap).sent == 2
    with Consumer(broker.bootstrap, auto_offset_reset="earliest") as consumer:
        rows = consumer.read_table(topic).to_pylist()
    events = [json.loads(row["value"]) for row in rows]
    assert [event["eventType"] for event in events] == ["START", "FAIL"]
    assert {row["key"].decode() for row in rows} == {events[0]["run"]["runId"]}


def test_events_that_do_not_fit_are_dropped_and_nothing_waits() -> None:
    async def main() -> Emitter:
        async def refuse(_: bytes) -> None:
            raise NotSent("never")

        made = Emitter(refuse, default_environment().clock)
        made.emit({"number": number} for number in range(QUEUE_MAX + 7))
        return made

    assert asyncio.run(main()).dropped == 7


@pytest.mark.parametrize(
    ("target", "told"),
    [
        ("ftp://host/x", "does not support ftp"),
        ("https://user:word@host/", "without a password"),
        ("http:///path", "with a host"),
        ("topic:", "topic:NAME"),
    ],
)
def test_wrong_targets_are_refused(target: str, told: str) -> None:
    with pytest.raises(PipelineError, match=told) as failure:
        checked(target)
    assert "word@" not in str(failure.value)
