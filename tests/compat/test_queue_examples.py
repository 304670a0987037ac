"""Runs the examples of queues on a real Apache Kafka, which has share groups.

`tests/test_examples.py` says what an example finds. Here each has a topic of its own in place of
`jobs`.
"""

from __future__ import annotations

import contextlib
import io
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from compat.apache_kafka import SHARE_VERSION, ApacheKafka
from penstock import Queue
from penstock.testing.slowness import patient
from public_examples import Example
from test_docs import BROKER_IN_THE_TEXT, Block, sections
from test_examples import EXAMPLES, IN_QUEUES, run

ROOT = Path(__file__).resolve().parents[2]
BLOCKS = sections((ROOT / "docs" / "QUEUES.md").read_text("utf-8"))["Using queues"]

QUEUES = [each for each in EXAMPLES if IN_QUEUES in each.code]


@pytest.fixture(scope="module")
def kafka() -> Iterator[ApacheKafka]:
    with ApacheKafka(version=SHARE_VERSION) as started:
        yield started


@pytest.mark.parametrize("example", QUEUES, ids=lambda each: each.name.removeprefix("penstock."))
def test_the_example_runs(example: Example, kafka: ApacheKafka) -> None:
    """It raises nothing, and prints what it says."""
    topic = kafka.new_name("jobs")
    own = Example(example.name, example.code.replace('"jobs"', f'"{topic}"'))
    assert run(own, kafka.bootstrap, "") == [
        topic if line == "jobs" else line for line in example.prints
    ]


def test_there_are_examples_of_both_kinds_of_queues() -> None:
    names = {each.name for each in QUEUES}
    assert {"penstock.Queue", "penstock.aio.Queue", "penstock.aio.Queue.ask"} <= names


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: f"line {block.line}")
def test_the_example_of_the_docs_runs(block: Block, kafka: ApacheKafka) -> None:
    """Those of docs/QUEUES.md."""
    source = block.code.replace(BROKER_IN_THE_TEXT, kafka.bootstrap)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(source, "docs/QUEUES.md", "exec", dont_inherit=True), {})
    assert printed.getvalue().splitlines() == block.prints


def test_the_docs_have_examples() -> None:
    assert len(BLOCKS) == 3


def test_the_example_program_runs(kafka: ApacheKafka) -> None:
    """`examples/queue_worker.py` works off a queue, and ends when it is idle."""
    topic = kafka.new_topic(1)
    with Queue(kafka.bootstrap, topic) as queue:
        queue.put_all([b"cat.png", b"dog.png"])
        command = [
            sys.executable,
            "-m",
            "examples.queue_worker",
            kafka.bootstrap,
            topic,
            "--jobs",
            "2",
        ]
        ran = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=patient(150)
        )
        assert "2 done" in ran.stdout
        assert queue.stats().depth == 0
