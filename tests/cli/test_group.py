"""Tests `penstock group` with a fake broker."""

from __future__ import annotations

import pytest

from cli.conftest import Runner
from client.fake_broker import FakeBroker
from client.fake_model import Group, Member
from penstock.records.record import Record, build_batch
from penstock.wire.codec import encode_embedded
from penstock.wire.messages import ConsumerProtocolAssignment

NOW = 1_767_225_600_000
"""2026-01-01T00:00:00Z"""


@pytest.fixture
def orders(fake: FakeBroker) -> FakeBroker:
    """Two partitions with ten records each, one second apart. The group billing
    has read part of the first."""
    topic = fake.model.add_topic("orders", 2)
    for log in topic.logs:
        log.append(build_batch([Record(n, NOW + n * 1000, None, b"x") for n in range(10)]))
    fake.model.groups["billing"] = Group(offsets={("orders", 0): 4})
    return fake


def test_list_shows_groups_and_their_states(fake: FakeBroker, penstock: Runner) -> None:
    assert "no groups yet" in penstock("group", "list").out
    fake.model.groups["billing"] = Group("Stable")
    assert penstock("group", "list").out.splitlines()[2].split() == [
        "billing",
        "Stable",
        "consumer",
        "classic",
    ]
    assert penstock("group", "list", "--json").json["groups"] == [
        {"group": "billing", "state": "Stable", "protocol_type": "consumer", "type": "classic"}
    ]


def test_describe_shows_lag_and_members(orders: FakeBroker, penstock: Runner) -> None:
    """Partitions that are assigned but have no committed offset have no lag."""
    assigned = ConsumerProtocolAssignment(
        [ConsumerProtocolAssignment.TopicPartition("orders", [0, 1])]
    )
    group = orders.model.groups["billing"]
    group.state, group.protocol = "Stable", "range"
    group.members = [Member("m-1", "billing-app", encode_embedded(assigned, 0))]
    ended = penstock("group", "describe", "billing")
    lines = ended.out.splitlines()
    assert lines[0] == "group billing  Stable  1 member  assignor range  coordinator 0  lag 6"
    assert lines[3].split() == ["orders", "0", "4", "10", "6", "billing-app", "/127.0.0.1"]
    assert lines[4].split()[:5] == ["orders", "1", "-", "10", "-"]
    described = penstock("group", "describe", "billing", "--json").json
    assert (described["lag"], described["members"][0]["partitions"]) == (6, 2)
    assert [part["lag"] for part in described["partitions"]] == [6, None]


def test_describe_works_with_a_deleted_topic(orders: FakeBroker, penstock: Runner) -> None:
    """The group still has offsets for it."""
    del orders.model.topics["orders"]
    ended = penstock("group", "describe", "billing")
    assert ended.code == 0
    assert ended.out.splitlines()[3].split()[:5] == ["orders", "0", "4", "-", "-"]


def test_lag_does_not_count_records_deleted_by_retention(
    orders: FakeBroker, penstock: Runner
) -> None:
    """They can no longer be read."""
    orders.model.topics["orders"].logs[0].start = 7
    assert penstock("group", "describe", "billing", "--json").json["lag"] == 3


def test_a_missing_group_is_an_error(fake: FakeBroker, penstock: Runner) -> None:
    """With exit code 1, because the cluster answered."""
    ended = penstock("group", "describe", "nope")
    assert (ended.code, ended.err) == (1, "penstock: group nope does not exist\n")


@pytest.mark.parametrize(
    ("target", "offset"),
    [
        (("--to-earliest",), 0),
        (("--to-latest",), 10),
        (("--to-offset", "6"), 6),
        (("--to-offset", "600"), 10),
        (("--to-datetime", "2026-01-01T00:00:03Z"), 3),
        (("--to-datetime", "2027-01-01"), 10),
        (("--shift-by", "-2"), 2),
        (("--shift-by", "-20"), 0),
        (("--shift-by", "3"), 7),
    ],
)
def test_reset_changes_the_offsets_of_a_group(
    orders: FakeBroker, penstock: Runner, target: tuple[str, ...], offset: int
) -> None:
    """Targets are clamped to the log. Without --execute only the plan is shown."""
    group = orders.model.groups["billing"]
    ended = penstock("group", "reset-offsets", "billing", *target)
    assert ended.code == 0
    assert "nothing was changed: add --execute" in ended.out
    assert group.offsets == {("orders", 0): 4}
    moves = penstock("group", "reset-offsets", "billing", *target, "--execute", "--json").json
    assert moves["executed"]
    assert moves["partitions"] == [
        {
            "topic": "orders",
            "partition": 0,
            "from_offset": 4,
            "to_offset": offset,
            "lag": 10 - offset,
            "done": True,
        }
    ]
    assert group.offsets == {("orders", 0): offset}


def test_reset_of_chosen_topics_and_partitions(orders: FakeBroker, penstock: Runner) -> None:
    """The command creates a group that does not exist."""
    ended = penstock("group", "reset-offsets", "new", "-t", "orders", "--to-latest", "--execute")
    assert ended.code == 0
    assert orders.model.groups["new"].offsets == {("orders", 0): 10, ("orders", 1): 10}
    penstock("group", "reset-offsets", "new", "-t", "orders:1", "--to-earliest", "--execute")
    assert orders.model.groups["new"].offsets == {("orders", 0): 10, ("orders", 1): 0}


@pytest.mark.parametrize(
    ("arguments", "message", "code"),
    [
        ((), "give one of --to-earliest", 2),
        (("--to-earliest", "--to-latest"), "give one of", 2),
        (("--to-datetime", "yesterday-ish"), "is not a time", 2),
        (("-t", "orders:x", "--to-earliest"), "write TOPIC or TOPIC:0,1,2", 2),
        (("-t", "orders:9", "--to-earliest"), "partition 9 of orders does not exist", 1),
        (("-t", "nope", "--to-earliest"), "topic nope does not exist", 1),
        (("-t", "orders:1", "--shift-by", "1"), "no committed offset to shift", 2),
    ],
)
def test_reset_refuses_invalid_targets(
    orders: FakeBroker, penstock: Runner, arguments: tuple[str, ...], message: str, code: int
) -> None:
    """And changes nothing."""
    ended = penstock("group", "reset-offsets", "billing", *arguments, "--execute")
    assert ended.code == code
    assert message in ended.err
    assert orders.model.groups["billing"].offsets == {("orders", 0): 4}


def test_reset_refuses_a_group_with_members(orders: FakeBroker, penstock: Runner) -> None:
    """The members would overwrite the new offsets."""
    orders.model.groups["billing"].state = "Stable"
    orders.model.groups["billing"].members = [Member("m", "c")]
    ended = penstock("group", "reset-offsets", "billing", "--to-earliest", "--execute")
    assert ended.code == 1
    assert "stop its consumers first" in ended.err


def test_reset_of_a_group_without_offsets_needs_topics(fake: FakeBroker, penstock: Runner) -> None:
    """Otherwise it does not know which partitions to set."""
    ended = penstock("group", "reset-offsets", "nope", "--to-earliest")
    assert ended.code == 2
    assert "choose the topics with --topic" in ended.err


def test_delete_removes_groups_without_members(orders: FakeBroker, penstock: Runner) -> None:
    """Groups with members are refused with advice."""
    orders.model.groups["busy"] = Group("Stable", members=[Member("m", "c")])
    ended = penstock("group", "delete", "billing", "busy", "nope", "--yes")
    assert (ended.code, ended.out) == (1, "deleted group billing\n")
    assert "group busy: the group still has members: stop its consumers first" in ended.err
    assert "group nope does not exist" in ended.err
    assert list(orders.model.groups) == ["busy"]
