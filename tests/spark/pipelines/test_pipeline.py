"""Tests `penstock pipeline` with real Spark, each run in its own JVM, as for a user."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from penstock import Admin, Consumer, Producer
from penstock.runtime import SystemClock
from penstock.spark.pipelines.query_watch import STOPPING_SOON
from penstock.testing import Broker
from penstock.testing.slowness import patient

RUN_S = 480
"""Long on purpose: a busy machine needs minutes for what an idle one does in ten seconds."""
pytestmark = [pytest.mark.timeout(1_500), pytest.mark.usefixtures("java")]
PENSTOCK = [sys.executable, "-m", "penstock.cli.main"]
FAST = ("--master", "local[2]", "--conf", "spark.driver.memory=1g")


EXPECTED = """@expect("known_user", "user <> ''", on_violation="drop")
@expect("long_enough", "seconds >= 2", on_violation="quarantine")
"""


@pytest.fixture
def env(broker: Broker, tmp_path: Path) -> dict[str, str]:
    """The environment of a user with a separate home, with the brokers' addresses."""
    return {
        **os.environ,
        "PENSTOCK_BOOTSTRAP": broker.bootstrap,
        "XDG_STATE_HOME": str(tmp_path / "state"),
        "COLUMNS": "200",
    }


def penstock(env: dict[str, str], folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*PENSTOCK, *words],
        cwd=folder,
        env=env,
        capture_output=True,
        text=True,
        timeout=patient(RUN_S),
        check=False,
    )


class Running:
    """A continuous run; its events are read as they arrive."""

    def __init__(self, env: dict[str, str], folder: Path) -> None:
        self._process = subprocess.Popen(
            [*PENSTOCK, "pipeline", "run", "--continuous", "--interval", "0.2", "--json", *FAST],
            cwd=folder,
            env=env,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._lines: queue.Queue[str] = queue.Queue()
        self._reader = threading.Thread(target=self._read, name="events of a run")
        self._reader.start()
        self._deadline = SystemClock().monotonic() + patient(RUN_S)
        self.seen: list[dict[str, Any]] = []

    def until(self, **wanted: object) -> dict[str, Any]:
        """Waits for the next event with these fields."""
        while True:
            left = self._deadline - SystemClock().monotonic()
            try:
                line = self._lines.get(timeout=max(left, 0))
            except queue.Empty:
                pytest.fail(f"no {wanted} came; the last events: {self.seen[-5:]}")
            assert line, f"ended without {wanted}; the last events: {self.seen[-5:]}"
            self.seen.append(json.loads(line))
            if wanted.items() <= self.seen[-1].items():
                return self.seen[-1]

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                self._lines.put(line)
        self._lines.put("")

    def until_rows(self, flow: str, total: int) -> dict[str, Any]:
        """Waits until the flow has read this many rows, in any number of
        batches; returns that event."""

        def progress() -> list[dict[str, Any]]:
            return [
                event
                for event in self.seen
                if event["event"] == "progress" and event["flow"] == flow
            ]

        while sum(event["rows"] for event in progress()) < total:
            self.until(event="progress", flow=flow)
        assert sum(event["rows"] for event in progress()) == total
        return progress()[-1]

    def stop(self) -> int:
        self._process.send_signal(signal.SIGINT)
        return self._process.wait(timeout=patient(120))

    def close(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait(timeout=patient(120))
        self._reader.join(timeout=patient(120))


def views(first: int, count: int) -> list[dict[str, Any]]:
    return [
        {"user": f"u{number % 5}", "page": f"/p{number % 3}", "seconds": number % 31 + 0.5}
        for number in range(first, first + count)
    ]


def send(broker: Broker, topic: str, values: list[dict[str, Any]]) -> None:
    with Producer(broker.bootstrap) as producer:
        for value in values:
            producer.send(topic, json.dumps(value).encode(), key=value["user"].encode())


@pytest.fixture
def project(env: dict[str, str], tmp_path: Path) -> Iterator[Path]:
    made = penstock(env, tmp_path, "pipeline", "init", "shop")
    assert made.returncode == 0, made.stderr
    yield tmp_path / "shop"


def check_tables(broker: Broker, project: Path, expected: list[dict[str, Any]]) -> None:
    """Checks the table, the aggregate and the sink against plain Python."""
    table = pq.read_table(str(project / "spark-warehouse" / "page_views")).to_pylist()
    found = Counter((row["user"], row["page"], row["seconds"]) for row in table)
    assert found == Counter((row["user"], row["page"], row["seconds"]) for row in expected)
    counts = pq.read_table(str(project / "spark-warehouse" / "page_counts")).to_pylist()
    assert {row["page"]: (row["views"], row["users"], row["seconds"]) for row in counts} == {
        page: (
            len(rows),
            len({row["user"] for row in rows}),
            round(sum(row["seconds"] for row in rows), 1),
        )
        for page in {row["page"] for row in expected}
        if (rows := [row for row in expected if row["page"] == page])
    }
    with Consumer(broker.bootstrap) as consumer:
        sent = consumer.read_table("shop-long-views").column("value").to_pylist()
    long = [row for row in expected if row["seconds"] >= 25]
    assert Counter(json.dumps(json.loads(value)) for value in sent) == Counter(
        json.dumps(row) for row in long
    )


def test_a_new_project_runs_unchanged(
    env: dict[str, str], project: Path, broker: Broker, admin: Admin
) -> None:
    """Tables, sink, status and the group's offsets reflect the records that were sent."""
    sent = views(0, 200)
    with Producer(broker.bootstrap) as producer:
        producer.partitions_for("shop-page-views")
    send(broker, "shop-page-views", sent)
    ran = penstock(env, project, "pipeline", "run", *FAST)
    assert ran.returncode == 0, ran.stderr
    assert "200 rows" in ran.stdout and "shop is up to date" in ran.stdout
    check_tables(broker, project, sent)
    status = json.loads(penstock(env, project, "pipeline", "status", "--json").stdout)
    assert status["state"] == "COMPLETED"
    assert sum(at.offset for at in admin.group_offsets("shop").values()) == 200
    # The project's topics and group have fixed names, and other tests use the same broker.
    admin.delete_topics(["shop-page-views", "shop-long-views"])
    admin.delete_group("shop")


@pytest.mark.skipif(
    not os.environ.get("PENSTOCK_LONG"), reason="several minutes: set PENSTOCK_LONG=1"
)
def test_a_new_project_runs_continuously_and_continues_after_a_restart(
    env: dict[str, str], project: Path, broker: Broker, admin: Admin
) -> None:
    """Each round reads what has arrived, Ctrl-C ends the run cleanly, and another run reads only
    new records. `list`, `status` and the group's lag show it."""
    first, second, third = views(0, 200), views(200, 50), views(250, 30)
    running = Running(env, project)
    try:
        running.until(event="round", number=1)
        assert {"shop-page-views", "shop-long-views"} <= {each.name for each in admin.list_topics()}
        send(broker, "shop-page-views", first)
        running.until_rows("page_views", 200)
        running.until_rows("send_long_views", 200)
        send(broker, "shop-page-views", second)
        progress = running.until_rows("page_views", 250)
        assert sum(progress["offsets"]["shop-page-views"].values()) == 250
        running.until_rows("send_long_views", 250)
        assert penstock(env, project, "pipeline", "run").stderr.count("is already running") == 1
        running.until(event="round")
        # In the middle of a round: the views are emptied, and must be filled again before the end.
        running.until(event="flow", status="RUNNING")
        assert running.stop() == 0
        running.until(event="phase", text=STOPPING_SOON)
        assert running.until(event="end")["state"] == "STOPPED"
    finally:
        running.close()
    check_tables(broker, project, first + second)

    send(broker, "shop-page-views", third)
    again = penstock(env, project, "pipeline", "run", *FAST)
    assert again.returncode == 0, again.stderr
    assert "page_views batch #" in again.stdout
    assert "30 rows" in again.stdout and "shop is up to date" in again.stdout
    check_tables(broker, project, first + second + third)
    status = json.loads(penstock(env, project, "pipeline", "status", "--json").stdout)
    flows = {flow["name"]: flow for flow in status["flows"]}
    assert status["state"] == "COMPLETED" and set(flows) == {
        "page_views",
        "page_counts",
        "send_long_views",
    }
    assert (flows["page_views"]["rows"], flows["page_views"]["lag"]) == (30, 0)
    listed = json.loads(penstock(env, project, "pipeline", "list", "--json").stdout)
    assert [(each["name"], each["state"]) for each in listed["pipelines"]] == [
        ("shop", "COMPLETED")
    ]
    committed = admin.group_offsets("shop")
    assert sum(at.offset for at in committed.values()) == 280


def test_rows_that_violate_an_expectation_are_counted_and_quarantined(
    env: dict[str, str], project: Path, broker: Broker, admin: Admin
) -> None:
    """Rows without a user are dropped, short views are in a table of their own, with the reason."""
    file = project / "transformations" / "page_views.py"
    file.write_text(
        file.read_text()
        .replace(
            "from pyspark.sql import",
            "from penstock.spark import expect\nfrom pyspark.sql import",
            1,
        )
        .replace("def page_views()", f"{EXPECTED}def page_views()", 1)
    )
    sent = views(0, 62)
    for number in (3, 5):
        sent[number]["user"] = ""
    send(broker, "shop-page-views", sent)
    ran = penstock(env, project, "pipeline", "run", *FAST)
    assert ran.returncode == 0, ran.stderr + ran.stdout
    warehouse = project / "spark-warehouse"
    rows = pq.read_table(str(warehouse / "page_views")).to_pylist()
    assert len(rows) == 62 - 2 - 4
    assert min(row["seconds"] for row in rows) == 2.5
    assert "" not in {row["user"] for row in rows}
    short = pq.read_table(str(warehouse / "page_views_quarantine")).to_pylist()
    assert sorted(row["seconds"] for row in short) == [0.5, 0.5, 1.5, 1.5]
    assert all(row["violations"] == ["long_enough"] for row in short)
    status = json.loads(penstock(env, project, "pipeline", "status", "--json").stdout)
    flows = {flow["name"]: flow for flow in status["flows"]}
    assert flows["page_views"]["violations"] == {"known_user": 2, "long_enough": 4}
    assert "known_user 2, long_enough 4" in penstock(env, project, "pipeline", "status").stdout
    admin.delete_topics(["shop-page-views", "shop-long-views"])
    admin.delete_group("shop")


def test_quarantined_rows_go_to_a_topic(
    env: dict[str, str], project: Path, broker: Broker, admin: Admin
) -> None:
    """A topic that is missing is reported before anything runs. With exactly once, the next run
    sends only what is new."""
    topic = broker.new_topic()
    options = {"delivery": "exactly_once", "sink": f"{topic}-once"}
    given = f'on_violation="quarantine", quarantine_topic="{topic}-no", '
    expected = EXPECTED.replace('on_violation="quarantine"', f"{given}quarantine_options={options}")
    file = project / "transformations" / "page_views.py"
    file.write_text(
        file.read_text()
        .replace("from pyspark.sql", "from penstock.spark import expect\nfrom pyspark.sql", 1)
        .replace("def page_views()", f"{expected}def page_views()", 1)
    )
    send(broker, "shop-page-views", views(0, 62))
    refused = penstock(env, project, "pipeline", "run", *FAST)
    assert refused.returncode == 1
    assert f"the topic {topic}-no for the quarantined rows of page_views does not exist" in (
        refused.stderr
    )
    file.write_text(file.read_text().replace(f"{topic}-no", topic))
    for more in (0, 31):
        send(broker, "shop-page-views", views(62, more))
        ran = penstock(env, project, "pipeline", "run", *FAST)
        assert ran.returncode == 0, ran.stderr + ran.stdout
    with Consumer(broker.bootstrap, isolation_level="read_committed") as consumer:
        sent = consumer.read_table(topic)
    rows = [json.loads(value) for value in sent.column("value").to_pylist()]
    assert sorted(row["seconds"] for row in rows) == [0.5] * 3 + [1.5] * 3
    assert all(row["violations"] == ["long_enough"] for row in rows)
    assert all("viewed_at" in row for row in rows)
    assert {str(each) for each in sent.column("headers").to_pylist()} == {
        str([{"key": "penstock.flow", "value": b"page_views"}])
    }
    kept = pq.read_table(str(project / "spark-warehouse" / "page_views")).to_pylist()
    assert len(kept) == 93 - 6
    admin.delete_topics(["shop-page-views", "shop-long-views"])
    admin.delete_group("shop")


def test_dry_run_reports_an_error_in_one_line(env: dict[str, str], project: Path) -> None:
    """The flow and the reason first; the rest is in the log."""
    broken = project / "transformations" / "page_counts.sql"
    broken.write_text(broken.read_text().replace("sum(seconds)", "sum(secnds)"))
    ended = penstock(env, project, "pipeline", "dry-run", *FAST)
    assert ended.returncode == 1
    first, second = ended.stderr.splitlines()
    assert first.startswith("penstock: page_counts: A column") and "`secnds`" in first
    assert "last-run.log" in second
    assert not (project / "spark-warehouse" / "page_views").exists()
