"""Tests `penstock cluster` with a model of a cluster."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from itertools import chain

import pytest

from cli.cluster_model import ClusterModel, Move
from cli.conftest import Runner
from client.fake_broker import FakeBroker
from penstock.client.admin import moves as replica_moves
from penstock.testing.slowness import patient
from penstock.wire.errors import ErrorCode


@pytest.fixture
def cluster(fake: FakeBroker, monkeypatch: pytest.MonkeyPatch) -> ClusterModel:
    """Four brokers. Broker 3 is new and empty."""
    monkeypatch.setattr(replica_moves, "_INTERVAL_S", 0.001)
    model = ClusterModel(fake, brokers=4)
    model.topic_partition("orders", *([0, 1] for _ in range(4)))
    model.topic_partition("users", *([1, 2] for _ in range(2)))
    return model


def test_describe_shows_the_replicas_of_brokers(cluster: ClusterModel, penstock: Runner) -> None:
    """It also shows possible improvements, with the command for each."""
    cluster.spots["orders", 3].leader = 1
    cluster.moves["users", 1] = Move([1, 0])
    cluster.stuck = True
    ended = penstock("cluster", "describe")
    lines = ended.out.splitlines()
    assert lines[0] == "cluster fake-cluster: 2 topics, 6 partitions"
    assert lines[4].split()[3:] == ["4", "3", "4.0", "KiB", "controller"]
    assert "1 partition being moved: penstock cluster reassign --status" in ended.out
    assert "1 partition not led by the preferred replica: penstock cluster elect" in ended.out
    assert "to move for an even balance: penstock cluster rebalance" in ended.out
    found = penstock("cluster", "describe", "--json").json
    assert found["moving"] == [
        {"topic": "users", "partition": 1, "target": [1, 0], "adding": [0], "removing": [2]}
    ]
    assert [broker["replicas"] for broker in found["brokers"]] == [4, 6, 2, 0]
    assert [broker["leads"] for broker in found["brokers"]] == [3, 3, 0, 0]


def test_a_plan_without_execute_changes_nothing(cluster: ClusterModel, penstock: Runner) -> None:
    before = cluster.replicas()
    ended = penstock("cluster", "rebalance")
    assert ended.code == 0
    rows = [line.split() for line in ended.out.splitlines()]
    assert ["1", "-", "6", "->", "3", "2", "6.0", "KiB", "->", "3.0", "KiB"] in rows
    assert "4 partitions to change, 4 replicas to copy (4.0 KiB)" in ended.out
    assert ended.out.endswith("nothing was changed: add --execute to carry out the plan\n")
    planned = penstock("cluster", "rebalance", "--json").json
    assert planned["executed"] is False
    assert (planned["copies"], planned["copied_bytes"]) == (4, 4096)
    assert {each["replicas"] for each in planned["after"]["brokers"].values()} == {3}
    assert cluster.replicas() == before
    assert cluster.changed.moves == []


def test_a_plan_is_executed(cluster: ClusterModel, penstock: Runner) -> None:
    """Completely, a few partitions at a time. Finished partitions are led by
    their preferred replicas."""
    ended = penstock("cluster", "rebalance", "--execute", "--at-once", "2")
    assert ended.code == 0, ended.err
    assert ended.out.endswith("done: 4 partitions moved\n")
    assert all(len(asked) <= 2 for asked in cluster.changed.moves)
    elected = [
        topic_partitions or [] for kind, topic_partitions in cluster.changed.elections if kind == 0
    ]
    assert sorted(chain(*elected)) == sorted(chain(*cluster.changed.moves))
    assert [len(topic_partitions) for topic_partitions in elected] == [2, 2]
    assert all(spot.leader == spot.replicas[0] for spot in cluster.spots.values())
    again = penstock("cluster", "rebalance", "--execute")
    assert "nothing to move" in again.out
    assert len(cluster.changed.elections) == 2


@pytest.mark.parametrize(("looks", "sizes"), [(4, [1, 2, 4, 8, 16, 20]), (1, [1] * 6)])
def test_small_partitions_are_moved_in_growing_numbers(
    cluster: ClusterModel,
    penstock: Runner,
    monkeypatch: pytest.MonkeyPatch,
    looks: int,
    sizes: list[int],
) -> None:
    """Large ones are not, because clients notice the end of each move."""
    monkeypatch.setattr(replica_moves, "_QUICK_LOOKS", looks)
    cluster.topic_partition("many", *([0, 1] for _ in range(74)))
    ended = penstock("cluster", "rebalance", "--execute")
    assert ended.code == 0, ended.err
    asked = [len(moves) for moves in cluster.changed.moves]
    assert (asked[:6], max(asked)) == (sizes, sizes[-1])


def test_no_broker_takes_part_in_two_moves_at_once(
    fake: FakeBroker, penstock: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Moves between other brokers do not have to wait."""
    monkeypatch.setattr(replica_moves, "_INTERVAL_S", 0.001)
    cluster = ClusterModel(fake, brokers=4)
    cluster.topic_partition("pairs", [0], [0], [0], [0], [1], [1], [1], [1])
    monkeypatch.setattr(replica_moves, "_QUICK_LOOKS", 0)
    ended = penstock("cluster", "rebalance", "--execute")
    assert ended.code == 0, ended.err
    assert [len(moves) for moves in cluster.changed.moves] == [2, 2]
    targets = cluster.replicas()
    for moves in cluster.changed.moves:
        before = {0 if topic_partition[1] < 4 else 1 for topic_partition in moves}
        after = {targets[topic_partition][0] for topic_partition in moves}
        assert (before, after) == ({0, 1}, {2, 3})


def test_a_throttle_is_set_only_while_replicas_are_copied(
    cluster: ClusterModel, penstock: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It applies to the replicas that are copied and the brokers that receive them,
    and is removed afterwards."""
    seen: list[tuple[dict[int, dict[str, str]], dict[str, str]]] = []
    alter = cluster._alter

    def spying(topic_partition: tuple[str, int], target: list[int] | None) -> ErrorCode:
        settings = {broker: dict(values) for broker, values in cluster.broker_settings.items()}
        seen.append((settings, dict(cluster.topics["orders"].configs)))
        return alter(topic_partition, target)

    monkeypatch.setattr(cluster, "_alter", spying)
    planned = penstock("cluster", "rebalance", "--execute", "--throttle", "5000", "--json").json
    assert (planned["done"], planned["refused"], planned["cancelled"]) == (4, [], [])
    settings, configs = seen[0]
    added = {
        f"{move['partition']}:{broker}"
        for move in planned["moves"]
        if move["topic"] == "orders"
        for broker in move["to"]
        if broker not in move["from"]
    }
    assert set(configs[replica_moves.REPLICAS].split(",")) == added
    assert settings[3] == {replica_moves.RATE: "5000"}
    held = {
        f"{move['partition']}:{broker}"
        for move in planned["moves"]
        if move["topic"] == "orders"
        for broker in move["from"]
    }
    assert set(configs[replica_moves.LEADER_REPLICAS].split(",")) == held
    assert settings[0] == {replica_moves.LEADER_RATE: "5000"}
    assert all(not values for values in cluster.broker_settings.values())
    assert all(not topic.configs for topic in cluster.topics.values())


def test_copying_is_throttled_by_default(
    cluster: ClusterModel, penstock: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The limit is doubled while no replica arrives, so that the copy does not take forever."""
    rates: list[str] = []
    alter = cluster._alter

    def spying(topic_partition: tuple[str, int], target: list[int] | None) -> ErrorCode:
        rates.append(cluster.broker_settings.get(3, {}).get(replica_moves.RATE, "none"))
        return alter(topic_partition, target)

    monkeypatch.setattr(cluster, "_alter", spying)
    monkeypatch.setattr(replica_moves, "_PATIENCE_S", 0.2)
    cluster.stuck = True
    limit = str(round(patient(3)))
    ended = penstock("cluster", "rebalance", "--execute", "--timeout", limit)
    assert ended.code == 1
    assert f"not done after {limit} s" in ended.err
    assert "raised the throttle to 40 MB/s per broker" in ended.err
    assert "raised the throttle to 80 MB/s per broker" in ended.err
    assert rates[0] == "20000000"
    assert int(cluster.broker_settings[3][replica_moves.RATE]) >= 80_000_000
    cluster.stuck = False
    assert penstock("cluster", "reassign", "--wait").code == 0
    assert all(not values for values in cluster.broker_settings.values())
    rates.clear()
    assert penstock("cluster", "drain", "3", "--throttle", "0").code == 0
    assert set(rates) == {"none"}


def test_a_broker_is_drained(cluster: ClusterModel, penstock: Runner) -> None:
    """Nothing else is moved. A broker that is gone can be drained as well."""
    ended = penstock("cluster", "drain", "0", "--dry-run")
    assert ended.out.endswith("nothing was changed: add --execute to carry out the plan\n")
    ended = penstock("cluster", "drain", "0")
    assert ended.code == 0
    assert ended.out.endswith("broker 0 has no replicas and gets no new ones: you can stop it\n")
    assert all(0 not in replicas for replicas in cluster.replicas().values())
    assert cluster.replicas()["users", 0] == [1, 2]
    del cluster.racks[3]
    assert any(3 in replicas for replicas in cluster.replicas().values())
    ended = penstock("cluster", "drain", "3", "--json")
    assert ended.json["done"] > 0
    assert all(3 not in replicas for replicas in cluster.replicas().values())


def test_a_drained_broker_stays_empty_until_it_is_undrained(
    cluster: ClusterModel, penstock: Runner
) -> None:
    """The cluster stores this in Kafka's setting `cordoned.log.dirs`. Plans leave
    the broker out and say so."""
    assert penstock("cluster", "drain", "0", "--dry-run").code == 0
    assert not cluster.broker_settings.get(0)
    assert penstock("cluster", "drain", "0").code == 0
    assert cluster.broker_settings[0] == {"cordoned.log.dirs": "*"}
    described = penstock("cluster", "describe")
    assert "gets no new partitions: broker 0; to undo: penstock cluster undrain 0" in described.out
    brokers = penstock("cluster", "describe", "--json").json["brokers"]
    assert [broker["cordoned"] for broker in brokers] == [True, False, False, False]
    assert penstock("cluster", "rebalance", "--execute").code == 0
    assert all(0 not in replicas for replicas in cluster.replicas().values())
    ended = penstock("cluster", "undrain", "0")
    assert ended.out == "broker 0 can get partitions again; to use it: penstock cluster rebalance\n"
    assert not cluster.broker_settings[0]
    assert penstock("cluster", "rebalance", "--execute").code == 0
    assert any(0 in replicas for replicas in cluster.replicas().values())
    assert penstock("cluster", "undrain", "0", "--json").json == {
        "broker": 0,
        "was_drained": False,
    }
    ended = penstock("cluster", "undrain", "9")
    assert (ended.code, ended.err) == (
        1,
        (
            "penstock: broker 9 is not running, so it cannot be undrained: start it first. "
            "Running brokers: [0, 1, 2, 3]\n"
        ),
    )


def test_a_broker_that_is_needed_is_not_drained(cluster: ClusterModel, penstock: Runner) -> None:
    """Neither is one that does not exist."""
    cluster.topic_partition("wide", [0, 1, 2, 3])
    ended = penstock("cluster", "drain", "2")
    assert ended.code == 1
    assert "broker 2 cannot be drained: wide-0 has 4 replicas" in ended.err
    ended = penstock("cluster", "rebalance", "--exclude", "9")
    assert (ended.code, ended.err) == (
        1,
        "penstock: there is no broker 9: use one of [0, 1, 2, 3]\n",
    )


def test_refused_and_missing_moves_are_reported(cluster: ClusterModel, penstock: Runner) -> None:
    """With exit code 1; the other moves are completed."""
    cluster.moves["users", 0] = Move([3, 2])
    ended = penstock(
        "cluster", "reassign", "--move", "orders-0=2,3", "--move", "orders-1=9", "--move", "x-0=1"
    )
    assert ended.code == 1
    assert "done: 1 partition moved" in ended.out
    assert "orders-1: refused, said the fake" in ended.err
    assert "partition 0 of x does not exist" in ended.err
    assert cluster.replicas()["orders", 0] == [2, 3]


def test_a_canceled_move_is_not_waited_for(
    cluster: ClusterModel, penstock: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It must be missing from several listings in a row."""
    monkeypatch.setattr(cluster, "_advance", lambda topic_partition, move: cluster.moves.clear())
    ended = penstock("cluster", "reassign", "--move", "orders-0=2,3", "--json")
    assert (ended.code, ended.json) == (1, {"done": 0, "refused": [], "cancelled": ["orders-0"]})


def test_moves_are_listed_awaited_and_canceled(cluster: ClusterModel, penstock: Runner) -> None:
    """All of them, or those of one topic."""
    assert penstock("cluster", "reassign", "--status").out == "no moves under way\n"
    cluster.moves = {("users", 0): Move([3, 2]), ("orders", 2): Move([0, 3])}
    cluster.stuck = True
    shown = penstock("cluster", "reassign", "--status")
    assert shown.out.splitlines()[2].split() == ["orders-2", "0,3", "3", "1"]
    assert shown.out.endswith("2 moves under way\n")
    only = penstock("cluster", "reassign", "--status", "--topic", "users", "--json").json
    assert [each["topic"] for each in only["moving"]] == ["users"]
    cluster.broker_settings[1] = {replica_moves.RATE: "1"}
    ended = penstock("cluster", "reassign", "--cancel", "--topic", "users")
    assert ended.out == "cancelled 1 move\n"
    assert [*cluster.moves] == [("orders", 2)]
    assert cluster.broker_settings == {1: {}}
    ended = penstock("cluster", "reassign", "--wait", "--timeout", "0.05")
    assert ended.code == 1
    assert "not done after 0.05 s: 1 move under way, which the cluster will finish" in ended.err
    cluster.stuck = False
    assert penstock("cluster", "reassign", "--wait").out.startswith("done: 1 partition")
    assert cluster.replicas()["orders", 2] == [0, 3]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "give exactly one of --status, --wait, --cancel and --move"),
        (("--status", "--cancel"), "give exactly one of"),
        (("--move", "orders=1"), "write it as TOPIC-PARTITION=BROKER,BROKER"),
        (("--move", "orders-0="), "write it as TOPIC-PARTITION=BROKER,BROKER"),
        (("--move", "orders-0=1", "--topic", "x"), "leave out --topic"),
    ],
)
def test_wrong_usage_is_reported_in_one_line(
    cluster: ClusterModel, penstock: Runner, arguments: tuple[str, ...], words: str
) -> None:
    """With exit code 2."""
    ended = penstock("cluster", "reassign", *arguments)
    assert ended.code == 2
    assert words in ended.err
    assert ended.err.count("\n") == 1


def test_ctrl_c_reports_how_to_continue(cluster: ClusterModel) -> None:
    """Moves in progress continue, and the others have not begun."""
    cluster.stuck = True
    command = ("cluster", "rebalance", "--execute", "--at-once", "1", "--json")
    with subprocess.Popen(
        [sys.executable, "-m", "penstock.cli.main", *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        pause = threading.Event()
        while not cluster.moves:
            assert process.poll() is None
            pause.wait(0.01)
        process.send_signal(signal.SIGINT)
        out, errors = process.communicate(timeout=120)
    assert (process.returncode, out) == (130, "")
    assert errors.startswith("penstock: stopped: ")
    assert "not started yet (run the same command to continue)" in errors
    assert "penstock cluster reassign --status | --wait | --cancel" in errors


def test_preferred_leaders_are_elected(cluster: ClusterModel, penstock: Runner) -> None:
    """For all topics or for some. Refused elections are reported."""
    assert penstock("cluster", "elect").out == "no election was needed\n"
    cluster.spots["orders", 0].leader = 1
    cluster.spots["users", 0].leader = 2
    ended = penstock("cluster", "elect", "--topic", "orders", "--json")
    assert ended.json == {"elected": [{"topic": "orders", "partition": 0}], "refused": []}
    assert cluster.spots["users", 0].leader == 2
    cluster.spots["users", 0].in_sync = [2]
    cluster.spots["orders", 1].leader = 1
    ended = penstock("cluster", "elect")
    assert ended.code == 1
    assert ended.out == "1 partition got a new leader\n"
    assert ended.err == "penstock: users-0: refused, said the fake\n"
    assert penstock("cluster", "elect", "--topic", "nope").code == 1


def test_an_unclean_election_needs_confirmation(cluster: ClusterModel, penstock: Runner) -> None:
    """It loses records."""
    spot = cluster.spots["users", 1]
    spot.leader, spot.in_sync = -1, []
    ended = penstock("cluster", "elect", "--unclean")
    assert ended.code == 2
    assert "Add --yes to confirm" in ended.err
    assert penstock("cluster", "elect", "--unclean", "--yes").code == 0
    assert spot.leader == 1


def test_a_broker_is_unregistered(cluster: ClusterModel, penstock: Runner) -> None:
    """Only if it is not running."""
    ended = penstock("cluster", "forget", "9")
    assert ended.out == "broker 9 is not registered: there is nothing to remove\n"
    assert penstock("cluster", "forget", "9", "--json").json == {"broker": 9, "was_known": False}
    ended = penstock("cluster", "forget", "1")
    assert (ended.code, ended.err) == (1, "penstock: It is running\n")


def test_status_gives_advice_by_urgency(cluster: ClusterModel, penstock: Runner) -> None:
    cluster.topics["users"].configs["min.insync.replicas"] = "2"
    del cluster.racks[1]
    for spot in cluster.spots.values():
        spot.in_sync = [each for each in spot.in_sync if each != 1]
        spot.leader = spot.in_sync[0]
    spot = cluster.spots["orders", 3]
    spot.leader, spot.in_sync = -1, []
    found = penstock("status", "--json").json
    assert found["missing_brokers"] == [1]
    assert len(found["under_replicated_partitions"]) == 6
    below = [(each["topic"], each["partition"]) for each in found["under_min_isr_partitions"]]
    assert below == [("orders", 3), ("users", 0), ("users", 1)]
    assert [each.split(":")[0] for each in found["advice"]] == [
        "1 partition without a leader",
        "3 partitions below min.insync.replicas",
        "broker 1 is not running",
        "broker 3 has no replicas",
    ]
    shown = penstock("status").out
    assert "6 partitions under-replicated, 3 below min.insync.replicas, 1 without" in shown
    assert "- broker 1 is not running: start it; if it will not come back: penstock" in shown


def test_status_during_a_reassignment(cluster: ClusterModel, penstock: Runner) -> None:
    """It reports the moves, and leaders that are not the preferred replicas."""
    cluster.stuck = True
    cluster.moves["orders", 0] = Move([3, 2])
    cluster.spots["orders", 1].leader = 1
    cluster.spots["users", 1].in_sync = [1]
    advice = penstock("status", "--json").json["advice"]
    assert [each.split(":")[0] for each in advice] == [
        "1 partition being moved",
        "1 partition not led by the preferred replica",
        "broker 3 has no replicas",
    ]
    cluster.moves.clear()
    advice = penstock("status", "--json").json["advice"]
    assert advice[0].startswith("1 partition under-replicated while all brokers run")


def test_replicate_gives_a_topic_more_replicas_and_moves_nothing(
    cluster: ClusterModel, penstock: Runner
) -> None:
    """As for an internal topic that was created when only one broker was running. Safe to
    repeat."""
    cluster.topic_partition("__consumer_offsets", *([0] for _ in range(3)))
    before = cluster.replicas()
    ended = penstock("cluster", "replicate", "__consumer_offsets", "--replicas", "3")
    assert ended.code == 0, ended
    assert "3 partitions with fewer than 3 replicas" in ended.out
    after = cluster.replicas()
    for index in range(3):
        held = after["__consumer_offsets", index]
        assert held[0] == 0
        assert len(set(held)) == 3
    others = {
        topic_partition: held
        for topic_partition, held in after.items()
        if topic_partition[0] != "__consumer_offsets"
    }
    assert others.items() <= before.items()
    again = penstock("cluster", "replicate", "__consumer_offsets", "--replicas", "3")
    assert again.out == "nothing to do: every partition has 3 replicas or more\n"


def test_replicate_refuses_more_replicas_than_brokers(
    cluster: ClusterModel, penstock: Runner
) -> None:
    ended = penstock("cluster", "replicate", "orders", "--replicas", "5")
    assert ended.code != 0
    assert "5 replicas need 5 brokers" in ended.err
    assert penstock("cluster", "replicate", "nothing", "--replicas", "2").code != 0
    assert cluster.changed.moves == []
