"""When tasks run, and how they are ended: on Penstock and, side by side, on RabbitMQ.

Due times, expiry, revoking, aborting, time limits, remote control, events. The same tasks run on
both with the same results.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from celery import group
from celery.contrib.abortable import AbortableAsyncResult
from celery.exceptions import TaskRevokedError, TimeLimitExceeded

from celery_transport.both_brokers import QUEUE, Setup, get
from celery_transport.task_workers import LIMIT_S, lines, wait_until
from penstock.testing.slowness import patient

pytestmark = pytest.mark.xdist_group("celery")


# -- due times and expiry --------------------------------------------------------------------------


def test_a_task_with_an_eta_runs_after_it_and_others_before(setup: Setup) -> None:
    due = datetime.now(UTC) + timedelta(seconds=1)
    later = setup.task("add", 1, 2).apply_async(eta=due)
    assert get(setup.task("add", 3, 4).apply_async()) == 7
    assert get(later) == 3
    assert later.date_done.replace(tzinfo=UTC) >= due


def test_a_task_with_a_countdown_runs_later(setup: Setup) -> None:
    sent = datetime.now(UTC)
    result = setup.task("add", 1, 2).apply_async(countdown=0.5)
    assert get(result) == 3
    assert result.date_done.replace(tzinfo=UTC) >= sent + timedelta(seconds=0.5)


def test_an_expired_task_is_revoked(setup: Setup) -> None:
    result = setup.task("add", 1, 2).apply_async(expires=datetime.now(UTC) - timedelta(seconds=5))
    with pytest.raises(TaskRevokedError):
        get(result)


def test_a_task_that_expires_before_it_is_due_is_revoked(setup: Setup, tmp_path: Path) -> None:
    notes, life_s = tmp_path / "notes", patient(2.0)
    task = setup.task("note", str(notes), "ran")
    result = task.apply_async(countdown=life_s + 0.5, expires=life_s)
    with pytest.raises(TaskRevokedError):
        get(result)
    assert lines(notes) == []


def test_a_task_that_has_not_expired_runs(setup: Setup) -> None:
    assert get(setup.task("add", 1, 2).apply_async(expires=LIMIT_S)) == 3
    due = setup.task("add", 1, 2).apply_async(countdown=0.2, expires=LIMIT_S)
    assert get(due) == 3


# -- revoking --------------------------------------------------------------------------------------


def acknowledged(setup: Setup, replies: Any) -> bool:
    return [list(reply) for reply in replies or []] == [[setup.worker.name]]


ASK = {"reply": True, "timeout": LIMIT_S, "limit": 1}


def test_revoked_tasks_do_not_run(setup: Setup, tmp_path: Path) -> None:
    """A task, a group, and a task with a stamp. They wait until they are due, and are revoked by
    remote control meanwhile."""
    notes, control = tmp_path / "notes", setup.app.control
    wait_s = patient(8.0)
    task = setup.task("note", str(notes), "task").apply_async(countdown=wait_s)
    tasks = group(setup.task("note", str(notes), f"task {number}") for number in range(3))
    several = tasks.apply_async(countdown=wait_s).results
    stamped = setup.task("note", str(notes), "stamped")
    stamped.stamp(order=str(tmp_path))
    by_stamp = stamped.apply_async(countdown=wait_s)
    assert acknowledged(setup, control.revoke(task.id, **ASK))
    assert acknowledged(setup, control.revoke([each.id for each in several], **ASK))
    by_stamps = control.revoke_by_stamped_headers({"order": str(tmp_path)}, **ASK)
    assert acknowledged(setup, by_stamps)
    # Celery stores that a task is revoked before it is due. This one is due after all of them.
    assert get(setup.task("add", 1, 1).apply_async(countdown=wait_s)) == 2
    for each in (task, *several, by_stamp):
        with pytest.raises(TaskRevokedError):
            get(each)
    assert lines(notes) == []


@pytest.mark.parametrize("name", ["run_until_told", "wait_for"])
def test_a_running_task_is_terminated(setup: Setup, tmp_path: Path, name: str) -> None:
    """Acknowledged before it runs, and afterwards."""
    started, never = tmp_path / "started", tmp_path / "never"
    result = setup.task(name, str(started), str(never)).apply_async()
    wait_until(lambda: lines(started), "the task has started")
    process = int(lines(started)[0].split()[0])
    setup.app.control.revoke(result.id, terminate=True, signal="SIGKILL")
    wait_until(lambda: not Path(f"/proc/{process}").exists(), "its process has ended")
    with pytest.raises(TaskRevokedError):
        get(result)
    tasks = group(setup.task("add", number, number) for number in range(4))
    assert get(tasks.apply_async()) == [0, 2, 4, 6]
    assert len(lines(started)) == 1


def test_an_aborted_task_ends_by_itself(setup: Setup, tmp_path: Path) -> None:
    started = tmp_path / "started"
    sent = setup.task("run_until_aborted", str(started)).apply_async()
    wait_until(lambda: lines(started), "the task has started")
    result = AbortableAsyncResult(sent.id, app=setup.app, backend=setup.app.backend)
    result.abort()
    assert get(result) == "aborted"


# -- time limits -----------------------------------------------------------------------------------


def test_a_task_ends_at_its_soft_time_limit(setup: Setup, tmp_path: Path) -> None:
    given = str(tmp_path / "started"), str(tmp_path / "never")
    result = setup.task("run_until_told", *given).apply_async(soft_time_limit=1)
    assert get(result) == "in time"


def test_a_task_is_killed_at_its_time_limit(setup: Setup, tmp_path: Path) -> None:
    given = str(tmp_path / "started"), str(tmp_path / "never")
    result = setup.task("run_until_told", *given).apply_async(time_limit=1)
    with pytest.raises(TimeLimitExceeded):
        get(result)
    assert get(setup.task("add", 1, 1).apply_async()) == 2


# -- remote control and events ---------------------------------------------------------------------


def test_remote_control_answers(setup: Setup, tmp_path: Path) -> None:
    inspect = setup.app.control.inspect([setup.worker.name], timeout=LIMIT_S)
    assert inspect.ping() == {setup.worker.name: {"ok": "pong"}}
    started, go = tmp_path / "started", tmp_path / "go"
    result = setup.task("wait_for", str(started), str(go)).apply_async()
    wait_until(lambda: lines(started), "the task has started")
    active = inspect.active()
    assert result.id in [task["id"] for task in active[setup.worker.name]]
    go.touch()
    assert get(result) is False
    queues = inspect.active_queues()[setup.worker.name]
    assert [queue["name"] for queue in queues] == [QUEUE]


def test_a_worker_takes_another_queue_and_leaves_it(setup: Setup) -> None:
    other = f"{QUEUE}-other"
    control = setup.app.control
    assert acknowledged(setup, control.add_consumer(other, **ASK))
    result = setup.task("describe").apply_async(queue=other)
    assert get(result)["routing_key"] == other
    assert acknowledged(setup, control.cancel_consumer(other, **ASK))


def test_events_reach_a_monitor(setup: Setup) -> None:
    seen: list[str] = []
    with setup.app.connection_for_read() as connection:
        receiver = setup.app.events.Receiver(
            connection, handlers={"*": lambda event: seen.append(event["type"])}
        )
        with receiver.consumer_context() as (own, _, _):
            result = setup.task("add", 1, 1).apply_async()

            def has_succeeded() -> bool:
                try:
                    own.drain_events(timeout=0.2)
                except TimeoutError:
                    return False
                return "task-succeeded" in seen

            wait_until(has_succeeded, "the event has arrived")
    assert get(result) == 2
    assert {"task-received", "task-started", "task-succeeded"} <= set(seen)
