"""Tests `penstock txn` on real brokers: a healthy one, and one with hanging transactions."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cli.conftest import Runner
from client.hanging_transactions import forgetful_broker, leave_open
from penstock.testing import Broker


@pytest.fixture(scope="module")
def forgetful(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """Transactions hang on orders:0 and orders:1; the broker has no others."""
    data: Path = tmp_path_factory.mktemp("forgetful")
    with forgetful_broker(data, 0, 1) as (broker, _):
        yield broker


@pytest.fixture
def hanging(forgetful: Broker, monkeypatch: pytest.MonkeyPatch) -> Broker:
    monkeypatch.setenv("PENSTOCK_BOOTSTRAP", forgetful.bootstrap)
    monkeypatch.setenv("COLUMNS", "80")
    return forgetful


@pytest.fixture
def orderly(penstock_broker: Broker, monkeypatch: pytest.MonkeyPatch) -> Broker:
    penstock_broker.start()
    monkeypatch.setenv("PENSTOCK_BOOTSTRAP", penstock_broker.bootstrap)
    monkeypatch.setenv("COLUMNS", "80")
    return penstock_broker


def test_list_shows_ids_and_states(orderly: Broker, penstock: Runner) -> None:
    """All of them, or those that match the filters."""
    name, topic = orderly.new_name("billing"), orderly.new_topic()
    leave_open(orderly, name, topic, 0)
    ended = penstock("txn", "list")
    assert ended.code == 0
    [row] = [line.split() for line in ended.out.splitlines() if line.startswith(name)]
    assert row[1] == "Ongoing"
    [listed] = penstock("txn", "list", "--pattern", name, "--json").json["transactions"]
    assert listed == {
        "transactional_id": name,
        "state": "Ongoing",
        "producer_id": int(row[2].replace(",", "")),
        "coordinator": 0,
    }
    only = ("txn", "list", "--producer-id", str(listed["producer_id"]))
    assert name in penstock(*only, "--state", "Ongoing").out
    assert penstock(*only, "--state", "Empty").out == "no transactional id matches\n"
    assert penstock(*only, "--longer-than", "2h", "--json").json == {"transactions": []}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("list", "--longer-than", "soon"), "write a time span such as 30s"),
        (("list", "--longer-than", "now"), "write a time span such as 30s"),
        (("list", "--hanging", "--state", "Ongoing"), "--hanging can only be combined"),
        (("list", "--topic", "orders"), "--topic works only with --hanging"),
        (("list", "--state", "Sleeping"), "Sleeping: unknown transaction state"),
        (("abort",), "give an ID, or --partition"),
        (("abort", "x", "--partition", "orders:1"), "give an ID, or --partition"),
        (("abort", "x", "--start-offset", "1"), "--start-offset works only with --partition"),
        (("abort", "--partition", "orders"), "write it as TOPIC:PARTITION"),
        (("abort", "--partition", "orders:x"), "write it as TOPIC:PARTITION"),
        (("abort", "x"), "Add --yes to confirm"),
    ],
)
@pytest.mark.usefixtures("orderly")
def test_wrong_usage_is_refused_with_advice(
    penstock: Runner, arguments: tuple[str, ...], message: str
) -> None:
    """With exit code 2."""
    ended = penstock("txn", *arguments)
    assert ended.code == 2
    assert message in ended.err


def test_describe_shows_open_transactions(orderly: Broker, penstock: Runner) -> None:
    """With the start offset in each partition. A missing id is reported, the others are shown."""
    name, topic = orderly.new_name("billing"), orderly.new_topic(partitions=2)
    leave_open(orderly, name, topic, 1)
    ended = penstock("txn", "describe", name, "no-such-id")
    assert ended.code == 1
    assert ended.err == "penstock: transactional id no-such-id does not exist\n"
    lines = ended.out.splitlines()
    assert lines[0] == f"transactional id {name}  Ongoing  coordinator 0"
    assert " epoch 0  timeout 60 s  since " in lines[1]
    assert lines[-1].split() == [topic, "1", "0"]
    [described] = penstock("txn", "describe", name, "--json").json["transactions"]
    assert described["partitions"] == [{"topic": topic, "partition": 1, "start_offset": 0}]
    assert (described["state"], described["timeout_ms"]) == ("Ongoing", 60_000)


def test_abort_by_id_ends_an_open_transaction(orderly: Broker, penstock: Runner) -> None:
    """At once, in all its partitions."""
    name, topic = orderly.new_name("billing"), orderly.new_topic()
    leave_open(orderly, name, topic, 0)
    refused = penstock("txn", "abort", "--partition", f"{topic}:0", "--yes")
    assert refused.code == 1
    assert "is not hanging: its coordinator will end it" in refused.err
    ended = penstock("txn", "abort", name, "--yes")
    assert ended.out == f"{name} has no open transaction now, and its producer is fenced\n"
    described = penstock("txn", "describe", name).out
    assert described.splitlines()[0] == f"transactional id {name}  Empty  coordinator 0"
    assert described.endswith("no open transaction\n")
    missing = penstock("txn", "abort", "no-such-id", "--yes")
    assert (missing.code, "does not exist" in missing.err) == (1, True)
    nothing = penstock("txn", "abort", "--partition", f"{topic}:0", "--start-offset", "0", "-y")
    assert nothing.code == 1
    assert f"no transaction is open on {topic}-0 from offset 0" in nothing.err


def test_hanging_transactions_are_listed_and_aborted(hanging: Broker, penstock: Runner) -> None:
    """The listing fits a terminal and shows how to end them."""
    leave_open(hanging, "orderly", "orders", 2)
    shown = penstock("txn", "list", "--hanging").out
    assert all(len(line) <= 80 for line in shown.splitlines())
    assert "penstock txn abort --partition TOPIC:PARTITION --start-offset N" in shown
    found = penstock("txn", "list", "--hanging", "--json").json
    assert found["not_seen"] == []
    assert [(each["topic"], each["partition"]) for each in found["hanging"]] == [
        ("orders", 0),
        ("orders", 1),
    ]
    assert {each["start_offset"] for each in found["hanging"]} == {0}
    wrong = penstock("txn", "abort", "--partition", "orders:0", "--start-offset", "7", "--yes")
    assert wrong.code == 1
    for index, left in ((0, 1), (1, 0)):
        ended = penstock("txn", "abort", "--partition", f"orders:{index}", "--yes")
        assert ended.code == 0, ended
        assert f"on orders-{index} from offset 0" in ended.out
        listed = penstock("txn", "list", "--hanging", "-t", "orders", "--json").json["hanging"]
        assert len(listed) == left
    assert penstock("txn", "list", "--hanging").out == "no hanging transactions\n"
    assert penstock("txn", "list", "--state", "Ongoing").out.splitlines()[-1].startswith("orderly")
