"""`penstock topic`, against a broker made for tests."""

from __future__ import annotations

import io
import sys
from typing import Any, cast

import pytest

from cli.conftest import Runner
from client.fake_broker import FakeBroker
from penstock.cli.completion import topics as completed_topics
from penstock.records.record import Record, build_batch
from penstock.wire.api import ApiKey
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import CreateTopicsResponse


class Person(io.StringIO):
    """Somebody at a terminal."""

    def isatty(self) -> bool:
        return True


def test_create_says_what_was_made(fake: FakeBroker, penstock: Runner) -> None:
    """With partitions, replicas and configs as given."""
    ended = penstock("topic", "create", "orders", "-p", "3", "-c", "retention.ms = 5")
    assert (ended.code, ended.err) == (0, "")
    assert ended.out == "created topic orders: 3 partitions, replication factor 1\n"
    assert fake.model.topics["orders"].configs == {"retention.ms": "5"}
    ended = penstock("topic", "create", "users", "--json")
    assert (ended.json["topic"], ended.json["created"], ended.json["partition_count"]) == (
        "users",
        True,
        1,
    )


def test_create_of_what_exists_is_refused(fake: FakeBroker, penstock: Runner) -> None:
    """Unless it was said that this is fine."""
    fake.model.add_topic("orders")
    ended = penstock("topic", "create", "orders")
    assert (ended.code, ended.out) == (1, "")
    assert ended.err == "penstock: topic orders exists already\n"
    fake.next(ApiKey.CREATE_TOPICS, ErrorCode.TOPIC_ALREADY_EXISTS)
    ended = penstock("topic", "create", "orders")
    assert "exists: see it with: penstock topic describe" in ended.err
    ended = penstock("topic", "create", "orders", "--if-not-exists")
    assert (ended.code, ended.out) == (0, "topic orders exists already\n")


def test_a_refusal_shows_the_brokers_words(fake: FakeBroker, penstock: Runner) -> None:
    """As one line, whatever is in them."""
    topic = CreateTopicsResponse.Topic(
        "x", error_code=ErrorCode.INVALID_CONFIG, error_message="no such config\nat all"
    )
    fake.next(ApiKey.CREATE_TOPICS, CreateTopicsResponse(topics=[topic]))
    ended = penstock("topic", "create", "x", "--config", "a=b")
    assert (ended.code, ended.err) == (1, "penstock: no such config\\nat all\n")


@pytest.mark.parametrize("setting", ["retention.ms", "=5", " =5"])
def test_a_config_needs_key_and_value(penstock: Runner, setting: str) -> None:
    """Said before any broker is asked."""
    ended = penstock("topic", "create", "x", "--config", setting, "-b", "127.0.0.1:1")
    assert ended.code == 2
    assert "write it as KEY=VALUE" in ended.err


def test_list_shows_topics_in_order(fake: FakeBroker, penstock: Runner) -> None:
    """The cluster's own only when asked for."""
    assert "create one with: penstock topic create" in penstock("topic", "list").out
    fake.model.add_topic("users")
    fake.model.add_topic("orders", 3)
    fake.model.add_topic("__consumer_offsets").internal = True
    lines = penstock("topic", "list").out.splitlines()
    assert [line.split()[:3] for line in lines[2:]] == [["orders", "3", "1"], ["users", "1", "1"]]
    assert "__consumer_offsets" in penstock("topic", "list", "--internal").out
    listed = penstock("topic", "list", "--json").json["topics"]
    assert [topic["name"] for topic in listed] == ["orders", "users"]
    assert listed[0]["partition_count"] == 3


def test_describe_shows_partitions_offsets_and_changed_configs(
    fake: FakeBroker, penstock: Runner
) -> None:
    """Defaults only when asked for."""
    topic = fake.model.add_topic("orders", 2, colour="red")
    topic.logs[0].append(build_batch([Record(0, 1, None, b"x"), Record(1, 2, None, b"y")]))
    ended = penstock("topic", "describe", "orders")
    lines = [line.split() for line in ended.out.splitlines()]
    assert ["0", "0", "0", "0", "0", "2"] in lines
    assert ["colour", "red", "topic"] in lines
    assert "retention.ms" not in ended.out
    assert "retention.ms" in penstock("topic", "describe", "orders", "--all-configs").out
    described = penstock("topic", "describe", "orders", "--json").json["topics"][0]
    assert described["partitions"][0]["next_offset"] == 2
    assert described["configs"] == [{"name": "colour", "value": "red", "source": "topic"}]


def test_describe_shows_what_there_is_and_names_what_is_not(
    fake: FakeBroker, penstock: Runner
) -> None:
    """Part of an answer is an answer, with exit code 1."""
    fake.model.add_topic("orders")
    ended = penstock("topic", "describe", "orders", "nope")
    assert ended.code == 1
    assert "topic orders" in ended.out
    assert "topic nope does not exist: see penstock topic list" in ended.err


def test_describe_works_without_a_leader(fake: FakeBroker, penstock: Runner) -> None:
    """It is then that one wants to look."""
    topic = fake.model.add_topic("orders")
    topic.leader, topic.in_sync, topic.replicas = -1, (), (0, 1)
    ended = penstock("topic", "describe", "orders")
    assert ended.code == 0
    assert ended.out.splitlines()[3].split() == ["0", "none", "0,1", "-", "-"]


def test_alter_changes_configs_and_partitions(fake: FakeBroker, penstock: Runner) -> None:
    """All in one go."""
    topic = fake.model.add_topic("orders", 1, old="1")
    ended = penstock("topic", "alter", "orders", "-p", "4", "-c", "a=b", "--delete-config", "old")
    assert (ended.code, ended.err) == (0, "")
    assert ended.out == "altered topic orders: a=b, old at its default, 4 partitions\n"
    assert (len(topic.logs), topic.configs) == (4, {"a": "b"})


def test_alter_refuses_what_cannot_be(fake: FakeBroker, penstock: Runner) -> None:
    """No change at all, fewer partitions, no such topic."""
    fake.model.add_topic("orders", 2)
    ended = penstock("topic", "alter", "orders")
    assert ended.code == 2
    assert "nothing to change" in ended.err
    assert penstock("topic", "alter", "orders", "-p", "1").code == 1
    ended = penstock("topic", "alter", "nope", "-c", "a=b")
    assert ended.code == 1
    assert "topic nope does not exist" in ended.err


def test_delete_needs_a_yes(
    fake: FakeBroker, penstock: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From a person who is asked, or by an option."""
    fake.model.add_topic("orders")
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n"))
    ended = penstock("topic", "delete", "orders")
    assert ended.code == 2
    assert "Say so with --yes" in ended.err
    monkeypatch.setattr(sys, "stdin", Person("n\n"))
    ended = penstock("topic", "delete", "orders")
    assert ended.code == 1
    assert "Delete orders and all records in it? [y/N]" in ended.err
    assert "nothing was changed" in ended.err
    assert "orders" in fake.model.topics
    monkeypatch.setattr(sys, "stdin", Person("y\n"))
    ended = penstock("topic", "delete", "orders")
    assert (ended.code, ended.out) == (0, "deleted topic orders\n")
    assert "orders" not in fake.model.topics


def test_delete_of_several_does_what_it_can(fake: FakeBroker, penstock: Runner) -> None:
    """And names the rest."""
    fake.model.add_topic("a")
    ended = penstock("topic", "delete", "a", "nope", "-y")
    assert (ended.code, ended.out) == (1, "deleted topic a\n")
    assert "topic nope does not exist" in ended.err
    assert penstock("topic", "delete", "nope", "-y", "--if-exists").code == 0


def test_names_are_never_written_raw(fake: FakeBroker, penstock: Runner) -> None:
    """A terminal would obey what is in them."""
    fake.model.add_topic("red\x1b[31m")
    for arguments in (("topic", "list"), ("topic", "describe", "red\x1b[31m")):
        assert "\x1b" not in penstock(*arguments).out


def test_tables_fit_eighty_columns(fake: FakeBroker, penstock: Runner) -> None:
    """Long names are folded, not cut."""
    name = "a-very-long-topic-name-" * 6
    fake.model.add_topic(name, 2, **{"some.config": "x" * 100})
    for arguments in (("topic", "list"), ("topic", "describe", name)):
        lines = penstock(*arguments).out.splitlines()
        table_lines = [line for line in lines if not line.startswith("topic a-very")]
        assert max(map(len, table_lines)) <= 80
    cells = [line.split(" ")[0] for line in penstock("topic", "list").out.splitlines()[2:]]
    assert "".join(cells) == name


@pytest.mark.parametrize("command", [("topic", "list"), ("group", "list"), ("status",)])
def test_without_a_broker_every_command_says_what_to_do(
    penstock: Runner, command: tuple[str, ...]
) -> None:
    """In one line, with exit code 2."""
    ended = penstock(*command, "--bootstrap", "127.0.0.1:1")
    assert (ended.code, ended.out) == (2, "")
    assert ended.err == (
        "penstock: cannot connect to 127.0.0.1:1: nothing listens there: "
        "is a broker running? start one with: penstock up\n"
    )


def test_a_wrong_address_is_wrong_usage(penstock: Runner) -> None:
    """And says how to write one."""
    ended = penstock("topic", "list", "--bootstrap", "localhost:kafka")
    assert ended.code == 2
    assert "--bootstrap: localhost:kafka has no valid port" in ended.err


def test_the_shell_can_complete_topic_names(fake: FakeBroker) -> None:
    """Those that begin as typed; none, and no error, when no broker answers."""

    class Context:
        def __init__(self, bootstrap: str | None) -> None:
            self.params = {"bootstrap": bootstrap}

    for name in ("orders", "orders-retry", "users"):
        fake.model.add_topic(name)
    assert completed_topics(cast(Any, Context(None)), "ord") == ["orders", "orders-retry"]
    assert completed_topics(cast(Any, Context("127.0.0.1:1")), "ord") == []
