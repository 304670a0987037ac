"""A leader that is frozen (SIGSTOP): its connections stay open, and it answers nothing."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from penstock import Admin, Queue
from penstock.errors import LockLost
from penstock.testing import Broker
from penstock.testing.slowness import patient

LIMIT_S = patient(120.0)
LONG_MS = 1_800_000
"""No request and no lock of this test times out."""


def settings(number: int, directory: Path) -> dict[str, str]:
    return {
        "broker_id": str(number),
        "store": str(directory / "metadata.db"),
        # The test waits for the end of the session of the frozen broker.
        "broker.session.timeout.ms": str(int(patient(8_000))),
        "group.share.record.lock.duration.ms": str(LONG_MS),
        "share.coordinator.state.topic.num.partitions": "1",
        "share.coordinator.state.topic.replication.factor": "3",
        "share.coordinator.state.topic.min.isr": "1",
        "offsets.topic.num.partitions": "1",
    }


def test_an_acknowledgement_does_not_wait_for_a_frozen_leader(tmp_path: Path) -> None:
    """The job is lost when the metadata names another leader. The broker that is frozen is also the
    one from which the client had its metadata."""
    with ExitStack() as stack:
        brokers = [
            stack.enter_context(Broker(settings(each, tmp_path), data=str(tmp_path / f"b{each}")))
            for each in range(3)
        ]
        with Admin([each.bootstrap for each in brokers]) as admin:
            admin.create_topic("jobs", 1, 3)
            leader = admin.describe_topic("jobs").partitions[0].leader
        thread = stack.enter_context(ThreadPoolExecutor(1))
        first = sorted(brokers, key=lambda each: each is not brokers[leader])
        queue = Queue(
            [each.bootstrap for each in first],
            "jobs",
            request_timeout_ms=LONG_MS,
            default_api_timeout_ms=LONG_MS,
        )
        stack.callback(queue.close)
        queue.put(b"job")
        job = queue.take(LIMIT_S)
        assert job is not None
        brokers[leader].freeze()
        stack.callback(brokers[leader].thaw)
        with pytest.raises(LockLost, match="another broker leads the partition"):
            thread.submit(job.done).result(LIMIT_S)
        again = queue.take(LIMIT_S)
        assert again is not None
        assert again.value == b"job"
        again.done()
