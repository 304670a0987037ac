"""Quotas limit confluent-kafka and Java: how much they send and receive, and what they are told.

Only upper bounds are asserted: a slow machine sends less. A fresh client may use its quota of one
second at once. Then it may use its quota, plus the requests that were under way, since a request
that exceeds the quota is still accepted.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import confluent_kafka as ck
import pytest
from benchmarks.quotas import breaches

from compat.conftest import TopicFactory
from compat.java_build import VERSIONS, compiled
from compat.toolchain import java_flags, run_scenario
from penstock import Admin
from penstock.security.gauges import BYTES_BURST_S, WindowedRate
from penstock.testing.slowness import patient

Name = Callable[[], str]
ROOT = Path(__file__).resolve().parents[2]
BYTES_PER_S = 20_000
BATCH_BYTES = 16_384
VALUE = b"v" * 1000
RUN_S = 2.0
THROTTLED_S = 60.0
"""By then, even a slow machine has used the quota of a second."""


def bound(seconds: float) -> float:
    return BYTES_PER_S * (seconds + BYTES_BURST_S) + 4 * BATCH_BYTES


class Throttles:
    """Counts how often librdkafka reports a throttle time."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, event: object) -> None:
        self.count += 1


def limit(broker: str, client_id: str, key: str) -> None:
    with Admin(broker) as admin:
        admin.alter_client_quotas({"client-id": client_id}, set_values={key: BYTES_PER_S})
        assert admin.describe_client_quotas({"client-id": client_id})


def fill(broker: str, topic: str) -> None:
    producer = ck.Producer({"bootstrap.servers": broker, "batch.size": BATCH_BYTES})
    for _ in range(2000):
        producer.produce(topic, VALUE)
    assert producer.flush(patient(THROTTLED_S)) == 0


@pytest.mark.slow
def test_a_producer_sends_no_more_than_its_quota(
    broker: str, topic: TopicFactory, name: Name
) -> None:
    made, client_id, throttles = topic(), name(), Throttles()
    limit(broker, client_id, "producer_byte_rate")
    producer = ck.Producer(
        {
            "bootstrap.servers": broker,
            "client.id": client_id,
            "acks": 1,
            "linger.ms": 1,
            "batch.size": BATCH_BYTES,
            "throttle_cb": throttles,
        }
    )
    delivered = 0

    def on_delivery(error: ck.KafkaError | None, message: ck.Message) -> None:
        nonlocal delivered
        assert error is None, error
        delivered += len(VALUE)

    began = time.monotonic()
    # The client reports throttle times a second apart at most.
    while (elapsed := time.monotonic() - began) < RUN_S or not throttles.count:
        assert elapsed < patient(THROTTLED_S), f"not throttled after {delivered} bytes"
        while len(producer) < 1000:
            producer.produce(made, VALUE, on_delivery=on_delivery)
        producer.poll(0.05)
    sent, elapsed = delivered, time.monotonic() - began
    assert 0 < sent <= bound(elapsed)
    producer.purge(in_queue=True, in_flight=True)


@pytest.mark.slow
def test_a_consumer_receives_no_more_than_its_quota(
    broker: str, topic: TopicFactory, name: Name
) -> None:
    made, client_id, throttles = topic(), name(), Throttles()
    fill(broker, made)
    limit(broker, client_id, "consumer_byte_rate")
    consumer = ck.Consumer(
        {
            "bootstrap.servers": broker,
            "client.id": client_id,
            "group.id": name(),
            "throttle_cb": throttles,
        }
    )
    received = 0
    try:
        began = time.monotonic()
        consumer.assign([ck.TopicPartition(made, 0, 0)])
        while (elapsed := time.monotonic() - began) < RUN_S or not throttles.count:
            assert elapsed < patient(THROTTLED_S), f"not throttled after {received} bytes"
            messages = consumer.consume(500, timeout=0.05)
            received += sum(len(each.value() or b"") for each in messages)
        assert 0 < received <= bound(time.monotonic() - began)
    finally:
        consumer.close()


@pytest.fixture(scope="module", params=VERSIONS)
def java(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    path = compiled(request.param, tmp_path_factory.mktemp(f"java-{request.param}"), "Limited")
    return ["java", *java_flags(), "-cp", path, "Limited"]


def run_java(java: list[str], broker: str, client_id: str, topic: str, work: str) -> Any:
    """Returns what the program did until it was throttled."""
    given = [broker, client_id, topic, work, str(BATCH_BYTES), "throttled"]
    return run_scenario([*java, *given])["throttled"]


@pytest.mark.slow
@pytest.mark.parametrize("work", ["produce", "consume"])
def test_java_uses_no_more_than_its_quota(
    broker: str, topic: TopicFactory, name: Name, java: list[str], work: str
) -> None:
    made, client_id = topic(), name()
    fill(broker, made)
    limit(broker, client_id, {"produce": "producer", "consume": "consumer"}[work] + "_byte_rate")
    found = run_java(java, broker, client_id, made, work)
    assert found["throttle_ms"] > 0
    assert 0 < found["bytes"] <= bound(found["seconds"])


def test_the_check_of_whole_half_minutes_runs(tmp_path: Path) -> None:
    """For moments only, with both clients: `make quotas` measures 30 seconds, and 60, and 33."""
    path = compiled(VERSIONS[-1], tmp_path, "Limited")
    program = [sys.executable, "-m", "benchmarks.quotas", "--held", "--smoke", "--json"]
    done = subprocess.run(
        [*program, "--java", path],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=patient(200),
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    works = ("produce", "fetch", "java_produce", "java_fetch")
    assert all(len(found[work]) == 3 for work in works)
    assert "neighbour_ms" not in found


def test_the_check_names_each_rate_that_is_too_far_from_its_quota() -> None:
    found = {
        "quota_bytes_per_s": 1 << 20,
        "produce": {"first 30 s": 1.099, "steady 33 s": 0.901},
        "java_fetch": {"first 30 s": 1.101, "twice 60 s": 0.899},
    }
    assert breaches(found) == [
        "java_fetch: 1.101 of the quota over the span 'first 30 s'",
        "java_fetch: 0.899 of the quota over the span 'twice 60 s'",
    ]


def requests(seed: int) -> list[tuple[int, int]]:
    """Returns the times and sizes of requests: dense ones, pauses of seconds, and long ones."""
    chosen, now_ms = random.Random(seed), 0
    made: list[tuple[int, int]] = []
    for _ in range(2000):
        now_ms += chosen.choice((0, 1, 7, 90, 300, 1000, 2500, 10_400, 12_000))
        made.append((now_ms, chosen.randrange(1, 3 * BYTES_PER_S)))
    return made


@pytest.mark.parametrize("seed", range(3))
def test_throttle_times_are_those_of_kafkas_own_rate(tmp_path: Path, seed: int) -> None:
    """Request time and connections are limited by it."""
    path = compiled(VERSIONS[0], tmp_path, "Rates")
    made = requests(seed)
    done = subprocess.run(
        ["java", *java_flags(), "-cp", path, "Rates", str(BYTES_PER_S)],
        input="".join(f"{now_ms} {size}\n" for now_ms, size in made),
        capture_output=True,
        text=True,
        check=True,
        timeout=patient(100),
    )
    rate = WindowedRate(BYTES_PER_S, made[0][0])
    ours = [rate.record(size, now_ms) for now_ms, size in made]
    theirs = [int(line) for line in done.stdout.split()]
    assert any(ours)
    assert len(ours) == len(theirs)
    # Both round to milliseconds, after sums in another order.
    assert max(abs(a - b) for a, b in zip(ours, theirs, strict=True)) <= 1
