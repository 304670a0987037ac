"""The tests of our queues on a real Apache Kafka. One Kafka serves all of them but one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from client.queues import test_queue as queues
from compat.apache_kafka import SHARE_VERSION, ApacheKafka
from compat.shared_client_tests import Chosen, shown

SHORTEST_LOCK_MS = 15_000


@pytest.fixture(scope="module")
def kafka() -> Iterator[ApacheKafka]:
    with ApacheKafka(version=SHARE_VERSION) as started:
        yield started


@pytest.mark.parametrize("chosen", queues.CHOSEN, ids=shown)
def test_queues_on_kafka(chosen: Chosen, kafka: ApacheKafka) -> None:
    chosen(kafka)


def test_locks_on_kafka(kafka: ApacheKafka) -> None:
    queues.test_locks_end_without_extension_and_last_with_it(kafka, SHORTEST_LOCK_MS)


def test_a_queue_survives_a_restart_of_kafka() -> None:
    with ApacheKafka(version=SHARE_VERSION) as kafka:
        queues.survive_a_restart(kafka)


def test_workers_on_kafka_end_after_sigterm(kafka: ApacheKafka, tmp_path: Path) -> None:
    queues.test_a_worker_that_gets_sigterm_finishes_its_jobs_and_releases_the_rest(kafka, tmp_path)


def test_the_commands_of_queues_on_kafka(
    kafka: ApacheKafka, capsys: pytest.CaptureFixture[str]
) -> None:
    queues.test_the_commands_of_queues(kafka, capsys)
