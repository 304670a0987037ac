"""Tests `penstock topic` with a fake broker."""

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
    """Standard input of a user at a terminal."""

    def isatty(self) -> bool:
        return True


def test_create_reports_what_was_created(fake: FakeBroker, penstock: Runner) -> None:
    """With partitions, replication factor and configs as given."""
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


def test_creating_an_existing_topic_is_refused(fake: FakeBroker, penstock: Runner) -> None:
    """Unless `--if-not-exists` is given."""
    fake.model.add_topic("orders")
    ended = penstock("topic", "create", "orders")
    assert (ended.code, ended.out) == (1, "")
    assert ended.err == "penstock: topic orders exists already\n"
    fake.next(ApiKey.CREATE_TOPICS, ErrorCode.TOPIC_ALREADY_EXISTS)
    ended = penstock("topic", "create", "orders")
    assert "exists: see it with: penstock topic describe" in ended.err
    ended = penstock("topic", "create", "orders", "--if-not-exists")
    assert (ended.code, ended.out) == (0, "topic orders exists already\n")


def test_a_refusal_shows_the_brokers_message(fake: FakeBroker, penstock: Runner) -> None:
    """In one line, even if the message has several."""
    topic = CreateTopicsResponse.Topic(
        "x", error_code=ErrorCode.INVALID_CONFIG, error_message="no such config\nat all"
    )
    fake.next(ApiKey.CREATE_TOPICS, CreateTopicsResponse(topics=[topic]))
    ended = penstock("topic", "create", "x", "--config", "a=b")
    assert (ended.code, ended.err) == (1, "penstock: no such config\\nat all\n")


@pytest.mark.parametrize("setting", ["retention.ms", "=5", " =5"])
def test_a_config_needs_a_key_and_a_value(penstock: Runner, setting: str) -> None:
    """Checked before any broker is contacted."""
    ended = penstock("topic", "create", "x", "--config", setting, "-b", "127.0.0.1:1")
    assert ended.code == 2
    assert "write it as KEY=VALUE" in ended.err


def test_list_shows_topics_sorted(fake: FakeBroker, penstock: Runner) -> None:
    """Internal topics only on request."""
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
    """Default configs only on request."""
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


def test_describe_shows_existing_topics_and_names_missing_ones(
    fake: FakeBroker, penstock: Runner
) -> None:
    """With exit code 1."""
    fake.model.add_topic("orders")
    ended = penstock("topic", "describe", "orders", "nope")
    assert ended.code == 1
    assert "topic orders" in ended.out
    assert "topic nope does not exist: see penstock topic list" in ended.err


def test_describe_works_without_a_leader(fake: FakeBroker, penstock: Runner) -> None:
    """A partition without a leader is when the command is needed."""
    topic = fake.model.add_topic("orders")
    topic.leader, topic.in_sync, topic.replicas = -1, (), (0, 1)
    ended = penstock("topic", "describe", "orders")
    assert ended.code == 0
    assert ended.out.splitlines()[3].split() == ["0", "none", "0,1", "-", "-"]


def test_alter_changes_configs_and_partitions(fake: FakeBroker, penstock: Runner) -> None:
    """In one command."""
    topic = fake.model.add_topic("orders", 1, old="1")
    ended = penstock("topic", "alter", "orders", "-p", "4", "-c", "a=b", "--delete-config", "old")
    assert (ended.code, ended.err) == (0, "")
    assert ended.out == "altered topic orders: a=b, old reset to its default, 4 partitions\n"
    assert (len(topic.logs), topic.configs) == (4, {"a": "b"})


def test_alter_refuses_invalid_changes(fake: FakeBroker, penstock: Runner) -> None:
    """No change at all, fewer partitions, or a missing topic."""
    fake.model.add_topic("orders", 2)
    ended = penstock("topic", "alter", "orders")
    assert ended.code == 2
    assert "nothing to change" in ended.err
    assert penstock("topic", "alter", "orders", "-p", "1").code == 1
    ended = penstock("topic", "alter", "nope", "-c", "a=b")
    assert ended.code == 1
    assert "topic nope does not exist" in ended.err


def test_delete_needs_a_confirmation(
    fake: FakeBroker, penstock: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An answer at the terminal, or an option."""
    fake.model.add_topic("orders")
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n"))
    ended = penstock("topic", "delete", "orders")
    assert ended.code == 2
    assert "Add --yes to confirm" in ended.err
    monkeypatch.setattr(sys, "stdin", Person("n\n"))
    ended = penstock("topic", "delete", "orders")
    assert ended.code == 1
    assert "Delete orders and all records? [y/N]" in ended.err
    assert "nothing was changed" in ended.err
    assert "orders" in fake.model.topics
    monkeypatch.setattr(sys, "stdin", Person("y\n"))
    ended = penstock("topic", "delete", "orders")
    assert (ended.code, ended.out) == (0, "deleted topic orders\n")
    assert "orders" not in fake.model.topics


def test_deleting_several_topics_continues_after_an_error(
    fake: FakeBroker, penstock: Runner
) -> None:
    """It reports the ones that failed."""
    fake.model.add_topic("a")
    ended = penstock("topic", "delete", "a", "nope", "-y")
    assert (ended.code, ended.out) == (1, "deleted topic a\n")
    assert "topic nope does not exist" in ended.err
    assert penstock("topic", "delete", "nope", "-y", "--if-exists").code == 0


def test_names_are_escaped_in_the_output(fake: FakeBroker, penstock: Runner) -> None:
    """A terminal would obey control characters in them."""
    fake.model.add_topic("red\x1b[31m")
    for arguments in (("topic", "list"), ("topic", "describe", "red\x1b[31m")):
        assert "\x1b" not in penstock(*arguments).out


def test_tables_fit_80_columns(fake: FakeBroker, penstock: Runner) -> None:
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
def test_without_a_broker_every_command_gives_advice(
    penstock: Runner, command: tuple[str, ...]
) -> None:
    """In one line, with exit code 2."""
    ended = penstock(*command, "--bootstrap", "127.0.0.1:1")
    assert (ended.code, ended.out) == (2, "")
    assert ended.err == (
        "penstock: cannot connect to 127.0.0.1:1: connection refused; "
        "to start a broker: penstock up\n"
    )


def test_an_invalid_address_is_wrong_usage(penstock: Runner) -> None:
    """The error shows the correct form."""
    ended = penstock("topic", "list", "--bootstrap", "localhost:kafka")
    assert ended.code == 2
    assert "--bootstrap: localhost:kafka has no valid port" in ended.err


def test_topic_names_are_completed(fake: FakeBroker) -> None:
    """Those with the typed prefix. If no broker answers, none and no error."""

    class Context:
        def __init__(self, bootstrap: str | None) -> None:
            self.params = {"bootstrap": bootstrap}

    for name in ("orders", "orders-retry", "users"):
        fake.model.add_topic(name)
    assert completed_topics(cast(Any, Context(None)), "ord") == ["orders", "orders-retry"]
    assert completed_topics(cast(Any, Context("127.0.0.1:1")), "ord") == []
