"""Dead letters of a queue on a real broker, and how they are sent back."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock import Admin, Job, Queue
from penstock.cli.app import run
from penstock.runtime import SystemClock
from penstock.testing import Broker
from penstock.testing.slowness import patient
from test_docs import BROKER_IN_THE_TEXT, sections

PAGE = Path(__file__).resolve().parents[3] / "docs" / "QUEUES.md"
LIMIT_S = patient(60.0)


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as started:
        yield started


def test_the_example_of_the_docs_runs(broker: Broker) -> None:
    blocks = sections(PAGE.read_text("utf-8"))["Design"]
    (block,) = (each for each in blocks if "errors.deadletterqueue" in each.code)
    printed = io.StringIO()
    source = block.code.replace(BROKER_IN_THE_TEXT, broker.bootstrap)
    with contextlib.redirect_stdout(printed):
        exec(compile(source, str(PAGE), "exec", dont_inherit=True), {})
    assert printed.getvalue().splitlines() == block.prints
    assert len(block.prints) == 1


def set_letters(admin: Admin, topic: str, *, copies: bool = True) -> None:
    """Creates a dead-letter topic, and sets it for the group of a queue."""
    admin.create_topic(f"dlq.{topic}", configs={"errors.deadletterqueue.group.enable": "true"})
    values = {
        "errors.deadletterqueue.topic.name": f"dlq.{topic}",
        "errors.deadletterqueue.copy.record.enable": str(copies).lower(),
    }
    admin.alter_configs(group=topic, set_values=values)
    found = admin.describe_configs(group=topic)
    assert {name: found[name].value for name in values} == values


def wait_until_empty(queue: Queue[bytes]) -> None:
    """Letters are written before their jobs leave the queue."""
    clock = SystemClock()
    end = clock.monotonic() + LIMIT_S
    while queue.stats().depth:
        assert clock.monotonic() < end, queue.stats()


def taken(queue: Queue[bytes]) -> Job[bytes]:
    job = queue.take(LIMIT_S)
    assert job is not None
    return job


@pytest.fixture
def redrive(broker: Broker, capsys: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    """`redrive(topic)` runs the command, and returns its answer."""

    def call(topic: str, *options: str) -> Any:
        command = ["queue", "redrive", f"dlq.{topic}", "--bootstrap", broker.bootstrap]
        code = run([*command, "--yes", "--json", *options])
        printed = capsys.readouterr()
        assert code == 0, printed
        return json.loads(printed.out)

    return call


def test_a_rejected_job_is_redriven_and_done(broker: Broker, redrive: Callable[..., Any]) -> None:
    """The job comes again with its value, key and headers, and without those of the letter. A
    redrive of a job that is rejected again counts on."""
    topic = broker.new_topic(2)
    with Admin(broker.bootstrap) as admin, Queue(broker.bootstrap, topic) as queue:
        set_letters(admin, topic)
        queue.put(b"cat.png", key="cats", headers=[("origin", b"web")])
        first = taken(queue)
        first.reject()
        wait_until_empty(queue)
        would = redrive(topic, "--dry-run")
        assert would["sent"] == {topic: 1}
        assert would["errors"] == {"A member of the group rejected the record.": 1}
        for attempt in (b"1", b"2"):
            assert redrive(topic)["sent"] == {topic: 1}
            again = taken(queue)
            assert (again.value, again.key, again.attempt) == (b"cat.png", b"cats", 1)
            assert again.record.partition == first.record.partition
            headers = dict(again.record.headers)
            assert (headers["origin"], headers["penstock.redriven"]) == (b"web", attempt)
            assert not [name for name in headers if name.startswith("__dlq.")]
            if attempt == b"1":
                again.reject()
                wait_until_empty(queue)
            else:
                again.done()
        wait_until_empty(queue)
        assert redrive(topic)["read"] == 0, "each letter is sent back once"


def test_a_redriven_job_is_no_duplicate_and_does_not_expire(
    broker: Broker, redrive: Callable[..., Any]
) -> None:
    """Brokers would drop it otherwise: its id is that of the first job, and its time is over."""
    configs = {"penstock.dedup.window.ms": "3600000", "penstock.timed.records": "true"}
    topic = broker.new_topic(1, configs=configs)
    with Admin(broker.bootstrap) as admin, Queue(broker.bootstrap, topic) as queue:
        set_letters(admin, topic)
        queue.put(b"by id", dedup="order 1")
        queue.put(b"by key", key="order 2")
        queue.put(b"expired", ttl=0.001)
        for _ in range(2):
            taken(queue).reject()
        wait_until_empty(queue)
        assert redrive(topic)["sent"] == {topic: 3}
        jobs = [taken(queue) for _ in range(3)]
        assert {job.value for job in jobs} == {b"by id", b"by key", b"expired"}
        for job in jobs:
            job.done()
        wait_until_empty(queue)


def test_letters_without_a_copy_of_their_record_are_not_sent_back(
    broker: Broker, redrive: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    """An empty job would be sent otherwise. The letter stays, so it can be looked up."""
    topic = broker.new_topic(1)
    with Admin(broker.bootstrap) as admin, Queue(broker.bootstrap, topic) as queue:
        set_letters(admin, topic, copies=False)
        queue.put(b"cat.png")
        taken(queue).reject()
        wait_until_empty(queue)
        for _ in range(2):
            done = redrive(topic)
            assert (done["sent"], done["without_copy"]) == ({}, 1)
        command = ["queue", "redrive", f"dlq.{topic}", "--bootstrap", broker.bootstrap, "--dry-run"]
        assert run(command) == 0
        assert "errors.deadletterqueue.copy.record.enable=true" in capsys.readouterr().out
