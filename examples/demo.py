"""Starts brokers, sends clicks to a topic, counts them with a Spark pipeline, and shows the counts.

Run it with `make demo`. Everything is in a temporary directory that is deleted afterwards. Without
Java there is no Spark: then the demo only produces and consumes records.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from penstock import Consumer
from penstock.runtime import SystemClock
from penstock.spark.home import make_home
from penstock.spark.java import JavaMissing, check_java

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

PENSTOCK = str(Path(sys.executable).with_name("penstock"))
BROKERS = 3
CLICKS, COUNTS = "clicks", "page-counts"
EVENTS = 4_000
ROWS_SHOWN = 24
WATCH_S = 180.0
STOP_S = 20.0
QUICK = {
    "spark__master": "local[2]",
    "spark__sql__shuffle__partitions": "1",
    "spark__python__authenticate__socketTimeout": "120s",
    # The demo ends before optimized code would pay off.
    "spark__driver__extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}


def run(*words: str, given: str = "") -> None:
    print(f"\n$ penstock {' '.join(words)}", flush=True)
    subprocess.run([PENSTOCK, *words], input=given, text=True, check=True, timeout=60)


@contextmanager
def cluster(data: str) -> Iterator[str]:
    """Starts the brokers and yields their address; they stop at the end."""
    print(f"$ penstock up --brokers {BROKERS}", flush=True)
    brokers = subprocess.Popen(
        [PENSTOCK, "up", "--no-console", "--brokers", str(BROKERS), "--data", data, "--port", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert brokers.stdout is not None
        ready = next((line for line in brokers.stdout if line.startswith("ready ")), "")
        if not ready:
            raise SystemExit("the brokers did not start: try penstock up by itself")
        print(ready, end="", flush=True)
        yield ready.strip().rpartition("bootstrap=")[2]
    finally:
        brokers.terminate()
        brokers.wait(timeout=STOP_S)


class Generator:
    """Sends half an hour of clicks within seconds, from its own thread."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="generator")

    def __enter__(self) -> Generator:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(STOP_S)

    def _run(self) -> None:
        from examples.pipelines import windowed_counts  # noqa: PLC0415 -- needs pyspark
        from penstock import Producer  # noqa: PLC0415 -- only when used

        with Producer(self._bootstrap) as producer:
            for number, event in enumerate(windowed_counts.events(EVENTS)):
                producer.send(CLICKS, json.dumps(event.value).encode(), key=event.key.encode())
                if number % 100 == 99 and self._stop.wait(0.2):
                    return


def count_clicks(bootstrap: str, checkpoint: str) -> None:
    """Starts the pipeline and shows the counts that it sends until there are enough."""
    from examples.pipelines import common, windowed_counts  # noqa: PLC0415 -- needs pyspark

    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")  # Everything is on this machine.
    print("\nstarting Spark for examples/pipelines/windowed_counts.py ...", flush=True)
    spark = common.session("penstock demo", **QUICK)
    spark.sparkContext.setLogLevel("OFF")
    try:
        query = windowed_counts.run(
            spark, bootstrap, checkpoint, topic=CLICKS, counts=COUNTS, continuous=True
        )
        try:
            show_counts(bootstrap, query)
        finally:
            query.stop()
    finally:
        spark.stop()


def show_counts(bootstrap: str, query: StreamingQuery) -> None:
    clock = SystemClock()
    deadline = clock.monotonic() + WATCH_S
    shown = 0
    print(f"\nwhat arrives in {COUNTS}:", flush=True)
    with Consumer(bootstrap, topics=[COUNTS], auto_offset_reset="earliest") as consumer:
        while shown < ROWS_SHOWN:
            if not query.isActive:
                raise SystemExit(f"the query has ended: {query.exception()}")
            if clock.monotonic() > deadline:
                raise SystemExit(f"no more than {shown} counts came within {WATCH_S:.0f} s")
            rows = [json.loads(record.value or b"{}") for record in consumer.poll(timeout_ms=500)]
            for row in sorted(rows, key=lambda row: (row["minute"], row["page"])):
                print(f"  {row['minute'][11:16]}  {row['page']:10} {row['count']:4}", flush=True)
                shown += 1


def records_only() -> None:
    orders = "".join(f"customer{number % 5}:order {number}\n" for number in range(20))
    run("produce", CLICKS, "--key-separator", ":", given=orders)
    run("consume", CLICKS, "--from-beginning", "--max-messages", "5", "--json")


def why_no_spark() -> str:
    if find_spec("pyspark") is None:
        return 'there is no PySpark here: pip install "penstock[spark]"'
    try:
        check_java()
    except JavaMissing as error:
        return str(error)
    return ""


def main() -> None:
    clock = SystemClock()
    begun = clock.monotonic()
    with tempfile.TemporaryDirectory(prefix="penstock-demo-") as folder:
        with cluster(f"{folder}/data") as bootstrap:
            os.environ["PENSTOCK_BOOTSTRAP"] = bootstrap
            run(
                "topic", "create", CLICKS, "--partitions", "3", "--replication-factor", str(BROKERS)
            )
            run(
                "topic", "create", COUNTS, "--partitions", "1", "--replication-factor", str(BROKERS)
            )
            if reason := why_no_spark():
                print(f"\n{reason}: records in and out instead", flush=True)
                records_only()
            else:
                os.environ.update(make_home(Path(folder) / "spark-home"))
                with Generator(bootstrap):
                    count_clicks(bootstrap, f"{folder}/checkpoint")
                run("group", "describe", "counts")
            run("topic", "describe", CLICKS)
            run("status")
        log = next(Path(folder).glob(f"data/broker-*/logs/{CLICKS}-0"))
        run("log", "verify", str(log))
    print(f"\nall stopped after {clock.monotonic() - begun:.0f} s")


if __name__ == "__main__":
    main()
