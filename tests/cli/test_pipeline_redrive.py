"""Tests `penstock pipeline redrive` with a real broker."""

from __future__ import annotations

from cli.conftest import Runner
from client.test_redrive import fill, letter, read
from penstock.testing import Broker


def test_dead_letters_are_counted_and_then_sent_back(
    penstock_broker: Broker, penstock: Runner
) -> None:
    broker = penstock_broker
    topic, dead = broker.new_topic(partitions=3), broker.new_topic(partitions=2)
    letters = [letter(b"%d" % number, topic, "this is not JSON") for number in range(3)]
    fill(broker, dead, [*letters, letter(b"x", topic, "too old")])
    command = ("pipeline", "redrive", dead, "--bootstrap", broker.bootstrap)

    counted = penstock(*command, "--dry-run")
    assert f"would be sent: 4 records to {topic}" in counted.out
    assert "3 x ValueError: this is not JSON" in counted.out
    assert not read(broker, topic)

    asked = penstock(*command)
    assert asked.code and "Add --yes" in asked.err
    assert not read(broker, topic)

    done = penstock(*command, "--error", "json", "--yes")
    assert f"sent: 3 records to {topic}" in done.out
    assert f"left in {dead}: 1 record with other errors" in done.out
    assert len(read(broker, topic)) == 3

    rest = penstock(*command, "--yes", "--json")
    assert (rest.json["sent"], rest.json["left"]) == ({topic: 1}, 0)
    assert "has no dead letters" in penstock(*command, "--yes").out


def test_the_errors_say_what_to_do(penstock_broker: Broker, penstock: Runner) -> None:
    broker = penstock_broker
    dead = broker.new_topic(partitions=2)
    command = ("pipeline", "redrive", dead, "--bootstrap", broker.bootstrap, "--yes")
    itself = penstock(*command, "--to", dead)
    assert itself.code and "a topic other than" in itself.err
    fill(broker, dead, [{"value": b"stray", "key": None, "headers": ()}])
    assert "name a topic with --to" in penstock(*command).out
    missing = penstock("pipeline", "redrive", "no-such", "-b", broker.bootstrap, "--yes")
    assert missing.code and "no-such" in missing.err
