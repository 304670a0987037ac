"""Tests the example pipelines with real Spark.

The results are compared, row by row, with those of a few lines of plain Python.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from penstock import Admin, Consumer
from penstock.testing import Broker
from penstock.testing.slowness import patient

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from examples.pipelines import backfill, clickstream, orders, sessions, windowed_counts
from examples.pipelines.common import BEGIN, Event, make_topic, send

QUERY_S = 300
pytestmark = pytest.mark.timeout(900)


def finish(query: StreamingQuery) -> None:
    """Waits until everything available is read; raises the query's error."""
    try:
        assert query.awaitTermination(int(patient(QUERY_S))), "the query did not come to its end"
    finally:
        query.stop()


def values(broker: Broker, topic: str) -> list[dict[str, Any]]:
    with Consumer(broker.bootstrap) as consumer:
        table = consumer.read_table(topic)
    return [json.loads(value) for value in table.column("value").to_pylist()]


def moment(text: str) -> datetime:
    return datetime.fromisoformat(text).astimezone(UTC)


def naive(at: datetime) -> datetime:
    """Returns a time as `collect` does: in UTC, the session's time zone, without a time zone."""
    return at.astimezone(UTC).replace(tzinfo=None)


def rows(found: Iterable[Any]) -> Counter[tuple[Any, ...]]:
    return Counter(tuple(row) for row in found)


@pytest.fixture(autouse=True)
def in_utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """`collect` converts times to the time zone of this process."""
    import time

    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def test_clickstream(spark: SparkSession, broker: Broker, admin: Admin, tmp_path: Path) -> None:
    """Each click is in the table once, typed, in the folder of its day, over several batches and a
    restart. Invalid clicks are dead letters."""
    topic, dead = "ex-clicks", "ex-clicks-dead"
    make_topic(broker.bootstrap, dead, 1)
    events = list(clickstream.events(400))
    broken = Event("x", {"id": "bad", "user": "x", "page": "/", "at": "no time"}, BEGIN)
    assert len(events) > len({event.value["id"] for event in events})
    table, checkpoint = str(tmp_path / "table"), str(tmp_path / "checkpoint")
    for part in ([*events[:300], broken], events[300:]):
        send(broker.bootstrap, topic, part)
        finish(
            clickstream.run(
                spark,
                broker.bootstrap,
                table,
                checkpoint,
                topic=topic,
                dead_letters=dead,
                batch_records=150,
            )
        )
    found = spark.read.parquet(table).select("id", "user", "page", "at", "day").collect()
    expected = {
        (
            event.value["id"],
            event.value["user"],
            event.value["page"],
            naive(moment(event.value["at"])),
            naive(moment(event.value["at"])).date(),
        )
        for event in events
    }
    assert rows(found) == Counter(expected)
    folders = sorted(path.name for path in Path(table).glob("day=*"))
    assert folders == ["day=2026-01-31", "day=2026-02-01"]
    assert [letter["id"] for letter in values(broker, dead)] == ["bad"]
    committed = admin.group_offsets("clickstream")
    assert sum(
        at.offset for topic_partition, at in committed.items() if topic_partition.topic == topic
    ) == 1 + len(events)


def test_windowed_counts(spark: SparkSession, broker: Broker, tmp_path: Path) -> None:
    """Every minute that the watermark has closed is counted once for each
    page, and no other minute."""
    topic, counts = "ex-window-clicks", "ex-window-counts"
    make_topic(broker.bootstrap, counts, 1)
    events = list(windowed_counts.events(600))
    for part in (events[:350], events[350:]):
        send(broker.bootstrap, topic, part)
        finish(
            windowed_counts.run(
                spark,
                broker.bootstrap,
                str(tmp_path / "checkpoint"),
                topic=topic,
                counts=counts,
                batch_records=200,
            )
        )
    times = [moment(event.value["at"]) for event in events]
    closed = max(times) - timedelta(minutes=1)
    expected: Counter[tuple[datetime, str]] = Counter()
    for at, event in zip(times, events, strict=True):
        minute = at.replace(second=0, microsecond=0)
        if minute + timedelta(minutes=1) <= closed:
            expected[minute, event.value["page"]] += 1
    found = values(broker, counts)
    assert len(found) == len(expected) > 50
    assert {(moment(row["minute"]), row["page"]): row["count"] for row in found} == expected


def test_orders(spark: SparkSession, broker: Broker, tmp_path: Path) -> None:
    """Orders paid within ten minutes are written once with their customer's latest country,
    to the table and the topic."""
    names: dict[str, Any] = {name: f"ex-{name}" for name in ("orders", "payments", "customers")}
    make_topic(broker.bootstrap, "ex-paid", 2)
    placed, paid = list(orders.orders(120)), list(orders.payments(120))
    send(broker.bootstrap, names["customers"], orders.customers())
    table = str(tmp_path / "table")
    for part in (slice(0, 70), slice(70, None)):
        send(broker.bootstrap, names["orders"], placed[part])
        send(broker.bootstrap, names["payments"], paid[part])
        finish(
            orders.run(
                spark,
                broker.bootstrap,
                table,
                str(tmp_path / "checkpoint"),
                out="ex-paid",
                **names,
            )
        )
    countries = {event.value["customer"]: event.value["country"] for event in orders.customers()}
    by_order = {event.value["order"]: event.at for event in paid}
    expected = {
        (
            event.value["order"],
            event.value["customer"],
            countries[event.value["customer"]],
            event.value["cents"],
            naive(event.at),
            naive(by_order[event.value["order"]]),
        )
        for event in placed
        if event.value["order"] in by_order
        and by_order[event.value["order"]] - event.at <= timedelta(minutes=10)
    }
    columns = ("order", "customer", "country", "cents", "at", "paid_at")
    found = spark.read.parquet(table).select(*columns).collect()
    assert 40 < len(expected) < len(paid)
    assert rows(found) == Counter(expected)
    sent = Counter(
        (
            row["order"],
            row["customer"],
            row["country"],
            row["cents"],
            naive(moment(row["at"])),
            naive(moment(row["paid_at"])),
        )
        for row in values(broker, "ex-paid")
    )
    assert sent == Counter(expected)


def test_backfill(spark: SparkSession, broker: Broker, tmp_path: Path) -> None:
    """The days of the range are in the table as in the topic. Repeating the backfill of one day
    changes no other day and duplicates nothing."""
    events = list(backfill.events(900))
    send(broker.bootstrap, "ex-sales", events)
    table = str(tmp_path / "table")

    def expected(since: datetime, until: datetime) -> Counter[tuple[Any, ...]]:
        sums: dict[tuple[Any, str], list[int]] = {}
        for event in events:
            if since <= event.at < until:
                key = (event.at.date(), event.value["product"])
                sums.setdefault(key, []).append(event.value["cents"])
        return Counter((*key, len(cents), sum(cents)) for key, cents in sums.items())

    first = datetime(2026, 2, 1, tzinfo=UTC)
    second, third = first + timedelta(days=1), first + timedelta(days=2)
    for since, until in ((first, third), (second, third), (second, third)):
        backfill.run(spark, broker.bootstrap, table, since, until, topic="ex-sales")
        found = spark.read.parquet(table).select("day", "product", "sales", "cents").collect()
        assert rows(found) == expected(first, third)
    assert len(expected(first, third)) == 6


def test_sessions(spark: SparkSession, broker: Broker, tmp_path: Path) -> None:
    """Sessions that the watermark has closed are written once, with their first and last click."""
    topic, out = "ex-session-clicks", "ex-sessions"
    make_topic(broker.bootstrap, out, 1)
    events = list(sessions.events(500))
    before = spark.conf.get(sessions.STATE_STORE)
    spark.conf.set(sessions.STATE_STORE, sessions.ROCKS)
    try:
        for part in (events[:300], events[300:]):
            send(broker.bootstrap, topic, part)
            finish(
                sessions.run(
                    spark,
                    broker.bootstrap,
                    str(tmp_path / "checkpoint"),
                    topic=topic,
                    out=out,
                )
            )
    finally:
        assert before is not None
        spark.conf.set(sessions.STATE_STORE, before)
    found = Counter(
        (row["user"], moment(row["started"]), moment(row["ended"]), row["clicks"])
        for row in values(broker, out)
    )
    assert found == expected_sessions(events)
    assert len(found) > 20


def expected_sessions(events: list[Event]) -> Counter[tuple[Any, ...]]:
    times: dict[str, list[datetime]] = {}
    for event in events:
        times.setdefault(event.value["user"], []).append(moment(event.value["at"]))
    watermark = max(max(each) for each in times.values()) - timedelta(minutes=10)
    found: Counter[tuple[Any, ...]] = Counter()
    for user, clicks in times.items():
        clicks.sort()
        runs: list[list[datetime]] = [[clicks[0]]]
        for at in clicks[1:]:
            if at - runs[-1][-1] > sessions.PAUSE:
                runs.append([])
            runs[-1].append(at)
        for run in runs:
            # A user's last session is closed only after its gap has passed.
            if run is not runs[-1] or run[-1] + sessions.PAUSE < watermark:
                found[user, run[0], run[-1], len(run)] += 1
    return found
