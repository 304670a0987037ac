"""kcat with Debian's librdkafka 2.0.2: an old client that checks for single protocol versions."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from compat.clients.base import CODECS, HOUR_AGO_MS, Client, Record
from compat.conftest import TopicFactory
from compat.toolchain import tool
from penstock.testing.slowness import patient

RUN_S = 150
Kcat = Callable[..., str]
BASE_MS = HOUR_AGO_MS


@pytest.fixture
def kcat(broker: str) -> Kcat:
    """Runs kcat with a mode and options and returns its stdout; fails if kcat fails."""
    program = tool("kcat", "apt-get install kcat")

    def run(*options: str, given: str = "", fails: bool = False) -> str:
        result = subprocess.run(
            [program, "-b", broker, *options],
            input=given,
            capture_output=True,
            text=True,
            check=False,
            timeout=patient(RUN_S),
        )
        assert bool(result.returncode) is fails, result.stderr
        return result.stderr if fails else result.stdout

    return run


def read(kcat: Kcat, topic: str, *options: str) -> list[dict[str, Any]]:
    output = kcat("-C", "-t", topic, "-e", "-J", "-o", "beginning", *options)
    return [json.loads(line) for line in output.splitlines()]


@pytest.mark.parametrize("codec", CODECS)
def test_codecs_headers_and_nulls(kcat: Kcat, topic: TopicFactory, codec: str) -> None:
    """Keys, nulls and repeated headers survive, with every codec."""
    name = topic()
    lines = ["key:value", "tombstone:", ":no key", *(f"{i}:{'long ' * i}" for i in range(1, 60))]
    headers = ["-H", "again=1", "-H", "null", "-H", "again=2", "-H", "empty="]
    options = ["-K:", "-Z", "-z", codec, *headers]
    kcat("-P", "-t", name, *options, given="\n".join(lines) + "\n")
    got = read(kcat, name)
    assert [m["offset"] for m in got] == list(range(len(lines)))
    for message, line in zip(got, lines, strict=True):
        key, _, value = line.partition(":")
        assert (message["key"], message["payload"]) == (key or None, value or None)
        assert message["headers"] == ["again", "1", "null", None, "again", "2", "empty", ""]


def test_stored_batches_are_compressed(
    kcat: Kcat, clients: Callable[[str], Client], topic: TopicFactory
) -> None:
    """An old librdkafka that misreads the version ranges would silently stop compressing."""
    name = topic(2)
    (line,) = ["the same words again and again " * 2000]
    for partition, codec in enumerate(["none", "zstd"]):
        kcat("-P", "-t", name, "-p", str(partition), "-z", codec, given=line + "\n")
    sizes = clients("kafka-python").log_sizes(name)
    assert sizes[0] > len(line)
    assert sizes[1] < len(line) / 10


def test_a_record_of_one_mebibyte(kcat: Kcat, topic: TopicFactory, tmp_path: Path) -> None:
    """kcat sends whole files as records."""
    name = topic(max_message_bytes="2097152")
    text = "0123456789abcdef" * 65536
    (tmp_path / "large").write_text(text)
    kcat("-P", "-t", name, "-X", "message.max.bytes=2000000", str(tmp_path / "large"))
    (got,) = read(kcat, name, "-X", "fetch.message.max.bytes=2000000")
    assert got["payload"] == text


def test_idempotence(kcat: Kcat, topic: TopicFactory) -> None:
    """Many small batches with idempotence arrive in order and once."""
    name = topic()
    lines = [str(i) for i in range(2000)]
    options = ["-X", "enable.idempotence=true", "-X", "batch.num.messages=20"]
    kcat("-P", "-t", name, *options, given="\n".join(lines) + "\n")
    got = read(kcat, name)
    assert [m["payload"] for m in got] == lines
    assert [m["offset"] for m in got] == list(range(2000))


def test_a_key_stays_in_its_partition(kcat: Kcat, topic: TopicFactory) -> None:
    """Keys are spread over partitions, and each has exactly one."""
    name = topic(4)
    lines = [f"key-{i % 20}:{i}" for i in range(200)]
    kcat("-P", "-t", name, "-K:", given="\n".join(lines) + "\n")
    homes: dict[str, set[int]] = {}
    for message in read(kcat, name):
        homes.setdefault(message["key"], set()).add(message["partition"])
    assert len(homes) == 20
    assert all(len(partitions) == 1 for partitions in homes.values())
    assert set.union(*homes.values()) == {0, 1, 2, 3}


def test_metadata(kcat: Kcat, topic: TopicFactory, broker: str) -> None:
    """Brokers, controller, partitions with leader and replicas."""
    name = topic(3)
    found = json.loads(kcat("-L", "-J", "-t", name))
    brokers = {b["id"]: b["name"] for b in found["brokers"]}
    assert set(broker.split(",")) <= set(brokers.values())
    assert found["controllerid"] in brokers
    (described,) = found["topics"]
    assert sorted(p["partition"] for p in described["partitions"]) == [0, 1, 2]
    assert all(p["leader"] in brokers for p in described["partitions"])
    assert name in {t["topic"] for t in json.loads(kcat("-L", "-J"))["topics"]}


def test_offsets_by_number_and_time(
    kcat: Kcat, clients: Callable[[str], Client], topic: TopicFactory
) -> None:
    """Queries by timestamp; reading from an offset, from the end, between two timestamps."""
    name = topic()
    records = [Record(b"%d" % i, timestamp_ms=BASE_MS + 1000 * i) for i in range(30)]
    clients("confluent-kafka").produce(name, records)
    assert kcat("-Q", "-t", f"{name}:0:{BASE_MS + 9500}").strip() == f"{name} [0] offset 10"

    def offsets(*options: str) -> list[int]:
        output = kcat("-C", "-t", name, "-p", "0", "-e", "-f", "%o ", *options)
        return [int(word) for word in output.split()]

    assert offsets("-o", "25") == list(range(25, 30))
    assert offsets("-o", "-3") == [27, 28, 29]
    between = ("-o", f"s@{BASE_MS + 5000}", "-o", f"e@{BASE_MS + 8000}")
    assert offsets(*between) == [5, 6, 7]
    assert offsets("-o", "end") == []


def test_a_group_resumes(kcat: Kcat, topic: TopicFactory, name: Callable[[], str]) -> None:
    """Each run of a group consumer continues where the last one stopped."""
    made, group = topic(2), name()

    def run() -> list[int]:
        options = ["-e", "-f", "%s\n", "-X", "auto.offset.reset=earliest"]
        return sorted(map(int, kcat("-G", group, *options, made).split()))

    for first in (0, 50, 100):
        numbers = range(first, first + 50)
        for partition in (0, 1):
            lines = "".join(f"{i}\n" for i in numbers if i % 2 == partition)
            kcat("-P", "-t", made, "-p", str(partition), given=lines)
        assert run() == list(numbers)
    assert run() == []


def test_reading_from_an_unknown_topic_fails(kcat: Kcat, name: Callable[[], str]) -> None:
    """Reading from a topic that does not exist fails with the reason."""
    options = ["-e", "-X", "allow.auto.create.topics=false"]
    complaint = kcat("-C", "-t", name(), *options, fails=True)
    assert re.search("Unknown topic or partition", complaint)
