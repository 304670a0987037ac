"""Feeds and deliveries of shared queues when something fails, with jobs that the test controls."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any, cast

import pytest

from celery_transport.task_workers import wait_until
from celery_transport.test_message_format import message
from penstock.celery.qos import QoS
from penstock.celery.task_queues import Feed, TaskDelivery
from penstock.client.blocking.queue import Job, Queue
from penstock.errors import ClientError, LockLost
from penstock.testing.slowness import patient


class ControlledJob:
    """A job of which the test says how often it was delivered, and whether its lock is lost."""

    def __init__(self, attempt: int = 1, *, is_lost: bool = False) -> None:
        self.attempt = attempt
        self.is_lost = is_lost
        self.calls: list[str] = []

    def done(self, *, wait: bool = True) -> None:
        self._settle("done")

    def retry(self, *, wait: bool = True) -> None:
        self._settle("retry")

    def _settle(self, how: str) -> None:
        if self.is_lost:
            raise LockLost("the lock of the job is lost")
        self.calls.append(how)


class ControlledQueue:
    """Hands out these jobs or raises these errors, one for each take, and then nothing."""

    topic = "celery"

    def __init__(self, *outcomes: ControlledJob | Exception) -> None:
        self.outcomes = list(outcomes)
        self.set_to: list[int] = []
        self.may_take = threading.Event()
        self.may_set = threading.Event()
        self.may_set.set()

    def start(self) -> None:
        pass

    def stop_taking(self) -> None:
        pass

    def close(self) -> None:
        self.may_take.set()

    def take(self, timeout_s: float) -> ControlledJob | None:
        if not self.may_take.wait(0.01) or not self.outcomes:
            return None
        outcome = self.outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def set_prefetch(self, prefetch: int) -> None:
        if prefetch == 5:
            self.may_set.wait(patient(30.0))
        self.set_to.append(prefetch)


def feed_of(queue: ControlledQueue) -> Feed:
    return Feed(cast("Queue[bytes]", queue), 1, lambda: None)


def delivery_of(job: ControlledJob, copies: list[Any], failure: Exception | None) -> TaskDelivery:
    def put(copy: Mapping[str, Any]) -> None:
        if failure is not None:
            raise failure
        copies.append(copy)

    return TaskDelivery(cast("Job[bytes]", job), message(), put)


def test_a_later_delivery_is_given_back_as_a_copy() -> None:
    job, copies = ControlledJob(2), list[Any]()
    delivery_of(job, copies, None).give_back()
    assert (len(copies), job.calls) == (1, ["done"])


def test_a_job_whose_lock_is_lost_is_not_copied() -> None:
    """It is delivered again anyway."""
    job, copies = ControlledJob(2, is_lost=True), list[Any]()
    delivery_of(job, copies, None).give_back()
    assert (copies, job.calls) == ([], [])


class Channel:
    """The owner of the messages."""

    do_restore = False

    def on_settled(self) -> None:
        pass


def test_a_job_that_cannot_be_copied_is_released() -> None:
    """Nobody else would release it: kombu has forgotten the message."""
    job, copies = ControlledJob(2), list[Any]()
    held = QoS(Channel())
    held.hold("1", "celery", delivery_of(job, copies, ClientError("no broker answers")))
    held.reject("1", requeue=True)
    assert (copies, job.calls) == ([], ["retry"])


def test_an_offered_job_whose_lock_is_lost_is_not_handed_out() -> None:
    """Another worker gets it."""
    lost, good = ControlledJob(), ControlledJob()
    queue = ControlledQueue(lost, good)
    feed = feed_of(queue)
    feed.start()
    queue.may_take.set()
    wait_until(lambda: feed._offered is not None, "a job is offered")
    lost.is_lost = True
    assert feed.take() is None
    wait_until(lambda: feed._offered is not None, "the next job is offered")
    assert cast(object, feed.take()) is good
    feed.close()


def test_a_job_that_arrives_while_a_feed_stops_is_given_back() -> None:
    job = ControlledJob()
    queue = ControlledQueue(job)
    feed = feed_of(queue)
    feed.stop()
    feed._offer(cast("Job[bytes]", job))
    assert job.calls == ["retry"]


@pytest.mark.parametrize("error", [ClientError("gone"), RuntimeError("a bug")])
def test_the_worker_gets_the_error_that_ends_a_feed(error: Exception) -> None:
    """Otherwise it would wait for ever for messages that nobody fetches."""
    queue = ControlledQueue(error)
    feed = feed_of(queue)
    feed.start()
    queue.may_take.set()
    feed._thread.join(patient(30.0))
    with pytest.raises(type(error), match=str(error)):
        feed.take()
    feed.close()


def test_the_last_limit_of_several_threads_holds() -> None:
    queue = ControlledQueue()
    queue.may_set.clear()
    feed = feed_of(queue)
    slow = threading.Thread(target=feed.limit, args=(5,))
    slow.start()
    wait_until(lambda: feed._prefetch == 5, "the first limit is being set")
    fast = threading.Thread(target=feed.limit, args=(6,))
    fast.start()
    fast.join(0.2)
    queue.may_set.set()
    slow.join(patient(30.0))
    fast.join(patient(30.0))
    assert queue.set_to == [5, 6]
