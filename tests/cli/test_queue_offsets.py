"""Tests the commands that set and delete the offsets of queues, and how groups show them."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from cli.conftest import Ended, Runner
from penstock import Admin, Queue, TopicPartition
from penstock.errors import BrokerError
from penstock.testing import Broker
from penstock.testing.slowness import patient
from penstock.wire.errors import ErrorCode

LIMIT_S = patient(120.0)


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as started:
        yield started


@pytest.fixture
def command(broker: Broker, penstock: Runner, monkeypatch: pytest.MonkeyPatch) -> Runner:
    monkeypatch.setenv("PENSTOCK_BOOTSTRAP", broker.bootstrap)
    monkeypatch.setenv("COLUMNS", "120")
    return penstock


@pytest.fixture
def done(broker: Broker) -> str:
    """A queue with four jobs of one partition, all done."""
    topic = broker.new_topic(1)
    with Queue(broker.bootstrap, topic) as queue:
        queue.put_all([b"0", b"1", b"2", b"3"])
        for _ in range(4):
            job = queue.take(LIMIT_S)
            assert job is not None
            job.done()
    return topic


def depth(broker: Broker, topic: str) -> int:
    with Queue(broker.bootstrap, topic) as queue:
        return queue.stats().depth


def taken(command: Runner, topic: str, count: int) -> list[str]:
    ended = command(
        "queue", "take", topic, "--count", str(count), "--timeout", f"{LIMIT_S:g}", "--json"
    )
    jobs = [json.loads(line) for line in ended.out.splitlines()]
    assert {job["attempt"] for job in jobs} == {1}
    return [job["value"] for job in jobs]


def test_a_reset_is_shown_first_and_then_made(broker: Broker, command: Runner, done: str) -> None:
    """Jobs from the new offset on come again, with fresh counts."""
    shown = command("queue", "reset-offsets", done, "--shift-by", "-2")
    assert shown.code == 0
    assert shown.out.splitlines()[2].split() == [done, "0", "4", "2", "2"]
    assert "nothing was changed: add --execute" in shown.out
    assert depth(broker, done) == 0
    made = command("queue", "reset-offsets", done, "--shift-by", "-2", "--execute", "--json").json
    assert made == {
        "topic": done,
        "group": done,
        "executed": True,
        "partitions": [
            {
                "topic": done,
                "partition": 0,
                "from_offset": 4,
                "to_offset": 2,
                "lag": 2,
                "done": True,
            }
        ],
    }
    assert depth(broker, done) == 2
    assert taken(command, done, 2) == ["2", "3"]


def test_jobs_before_the_new_offset_count_as_done(
    broker: Broker, command: Runner, done: str
) -> None:
    assert command("queue", "reset-offsets", done, "--to-earliest", "--execute").code == 0
    assert depth(broker, done) == 4
    assert command("queue", "reset-offsets", done, "--to-latest", "--execute").code == 0
    assert depth(broker, done) == 0


def test_only_the_named_partitions_of_the_named_group_are_reset(
    broker: Broker, command: Runner
) -> None:
    """The group is created if there is none."""
    topic, group = broker.new_topic(3), broker.new_name("group")
    asked = ("queue", "reset-offsets", topic, "--group", group, "--to-latest", "--execute")
    assert command(*asked, "--partitions", "0,2").code == 0
    with Admin(broker.bootstrap) as admin:
        offsets = admin.share_group_offsets(group)
        begun = {where.partition for where, at in offsets.items() if at.start_offset is not None}
        assert begun == {0, 2}
        assert admin.share_group_offsets(topic) == {}


@pytest.mark.parametrize(
    ("arguments", "message", "code"),
    [
        ((), "give one of --to-earliest", 2),
        (("--to-earliest", "--partitions", "x"), "write numbers, as in 0,1,2", 2),
        (("--to-earliest", "--partitions", "9"), "partition 9 of", 1),
        (("--shift-by", "1", "--group", "no-such-group"), "no committed offset to shift", 2),
    ],
)
def test_a_bad_reset_is_refused(
    command: Runner, done: str, arguments: tuple[str, ...], message: str, code: int
) -> None:
    ended = command("queue", "reset-offsets", done, *arguments)
    assert (ended.code, message in ended.err) == (code, True), ended


def refused(command: Runner, *arguments: str) -> Ended:
    ended = command(*arguments)
    assert ended.code != 0
    return ended


def test_a_group_with_workers_is_not_changed(broker: Broker, command: Runner, done: str) -> None:
    """The error says what to do."""
    with Queue(broker.bootstrap, done) as queue:
        queue.put(b"4")
        job = queue.take(LIMIT_S)
        assert job is not None
        reset = refused(command, "queue", "reset-offsets", done, "--to-earliest", "--execute")
        assert "stop its workers first" in reset.err
        ended = refused(command, "queue", "delete-offsets", done, "--yes")
        assert "has members: stop them first" in ended.err
        job.done()
    assert depth(broker, done) == 0


def test_deleted_offsets_are_forgotten(broker: Broker, command: Runner, done: str) -> None:
    """A group that takes jobs of the topic again begins as a new one does: at the first job."""
    assert "--yes" in refused(command, "queue", "delete-offsets", done).err
    ended = command("queue", "delete-offsets", done, "--yes")
    assert (ended.code, ended.out) == (0, f"deleted the offsets of group {done} for {done}\n")
    with Admin(broker.bootstrap) as admin:
        assert admin.share_group_offsets(done) == {}
    assert taken(command, done, 4) == ["0", "1", "2", "3"]


def test_groups_show_share_groups(command: Runner, done: str) -> None:
    listed = command("group", "list").out.splitlines()
    assert [line.split()[-1] for line in listed if line.split()[0] == done] == ["share"]
    lines = command("group", "describe", done).out.splitlines()
    assert lines[0].startswith(f"group {done}  Empty  0 members  coordinator ")
    assert lines[3].split()[:5] == [done, "0", "4", "4", "0"]
    ended = refused(command, "group", "reset-offsets", done, "--to-earliest")
    assert "is a share group: use penstock queue reset-offsets" in ended.err


def test_a_share_group_is_deleted_as_other_groups_are(
    broker: Broker, command: Runner, done: str
) -> None:
    assert command("group", "delete", done, "--yes").out == f"deleted group {done}\n"
    with Admin(broker.bootstrap) as admin, pytest.raises(BrokerError) as missing:
        admin.describe_share_group(done)
    assert missing.value.code == ErrorCode.GROUP_ID_NOT_FOUND


def test_an_admin_sets_and_deletes_the_offsets_of_a_share_group(broker: Broker, done: str) -> None:
    where = TopicPartition(done, 0)
    with Admin(broker.bootstrap) as admin:
        assert admin.describe_share_group(done).state == "Empty"
        assert admin.share_group_offsets(done)[where].start_offset == 4
        assert admin.alter_share_group_offsets(done, {where: 1}) == {where: None}
        assert admin.share_group_offsets(done)[where].start_offset == 1
        assert admin.delete_share_group_offsets(done, [done]) == {done: None}
        assert admin.share_group_offsets(done) == {}
