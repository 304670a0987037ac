"""Takes screenshots of the console for the README: `cd tests && python -m console.screenshots`.

They show a real console, in Chromium, of a real cluster with made-up orders, and the records of a
pipeline without Spark. Names of pages as arguments take only these.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from typing import Any, Literal

from console.fake_worker import FakeWorker, create_topics, flow
from console.running import brokers, running_console
from penstock import Admin, Producer
from penstock.topic_partition import TopicPartition

IMAGES = Path(__file__).parents[2] / "docs" / "images"
STATES = ("paid", "shipped", "failed", "returned")
TOPIC_PARTITIONS = [TopicPartition("shop.orders", each) for each in range(6)]


def main() -> None:
    from playwright.sync_api import sync_playwright

    IMAGES.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory() as directory,
        brokers(Path(directory), 3) as cluster,
        orders(",".join(broker.bootstrap for broker in cluster)),
        pipeline(",".join(broker.bootstrap for broker in cluster)),
        running_console(",".join(broker.bootstrap for broker in cluster)) as url,
        sync_playwright() as driver,
    ):
        browser = driver.chromium.launch(
            executable_path=shutil.which("chromium"),
            args=["--no-sandbox"] if os.getuid() == 0 else [],
        )
        themes: tuple[Literal["light", "dark"], ...] = ("light", "dark")
        for theme in themes:
            page = browser.new_context(
                viewport={"width": 1200, "height": 760}, color_scheme=theme
            ).new_page()
            take(page, url, theme)
        browser.close()


def take(page: Any, url: str, theme: str) -> None:
    page.goto(url)
    page.locator("#written canvas").wait_for(timeout=60_000)
    if theme == "light" and not sys.argv[1:]:
        page.goto(f"{url}#/groups/billing")
        page.locator("#partition-lag-chart canvas").wait_for(timeout=60_000)
        page.wait_for_timeout(60_000)
    shots = {
        "overview": ("#/", ".cards"),
        "topics": ("#/topics", ".row"),
        "messages": ("#/topics/shop.orders", ".message"),
        "group": ("#/groups/billing", "#group-partitions tbody"),
        "brokers": ("#/brokers", "#disks tbody"),
        "pipeline": ("#/pipelines/page-counts", "#graph .node"),
    }
    for name, (where, ready) in shots.items():
        if sys.argv[1:] and name not in sys.argv[1:]:
            continue
        page.goto(f"{url}{where}")
        page.locator(ready).first.wait_for()
        if name == "pipeline":
            page.locator("#graph .node.table").first.click()
            page.locator("#graph .node", has_text="/s written").first.wait_for(timeout=60_000)
        page.wait_for_timeout(4_500)
        page.screenshot(path=IMAGES / f"console-{name}-{theme}.png")


@contextmanager
def orders(bootstrap: str) -> Iterator[None]:
    """Sends orders continuously, with a group that falls behind."""
    stop = Event()

    def work() -> None:
        with Producer(bootstrap) as producer:
            for number in iter(lambda: next(numbers), None):
                order = {"id": number, "state": STATES[number % 4], "total": number % 97 + 0.5}
                key = f"customer-{number % 50}".encode()
                producer.send("shop.orders", json.dumps(order).encode(), key=key)
                if number % 40 == 0 and stop.wait(0.1):
                    return

    numbers = iter(range(10**9))
    with Admin(bootstrap) as admin:
        admin.create_topic("shop.orders", partitions=6, replication_factor=3)
        for name in ("shop.payments", "shop.returns", "web.clicks", "web.sessions"):
            admin.create_topic(name, partitions=3, replication_factor=2)
        admin.alter_group_offsets("billing", dict.fromkeys(TOPIC_PARTITIONS, 0))
    with ThreadPoolExecutor(1) as thread:
        sending = thread.submit(work)
        try:
            yield
        finally:
            stop.set()
            sending.result(120)


@contextmanager
def pipeline(bootstrap: str) -> Iterator[None]:
    """Reports a pipeline that runs."""
    stop = Event()

    def work() -> None:
        with Producer(bootstrap) as producer:

            def write(topic: str, value: bytes, key: bytes) -> None:
                producer.send(topic, value, key=key).result(timeout_s=60)

            worker = FakeWorker(write, "page-counts", "laptop-1")
            worker.deploy()
            worker.tell("started", version=1, worker="laptop-1")
            rows = 0
            while not stop.wait(1):
                rows += 420
                for _ in range(40):
                    producer.send("page-views", b"{}")
                flows = [
                    flow("page_views", rows=rows, lag=38, lag_s=0.4, state_rows=0, state_bytes=0),
                    flow("page_counts", rows=rows, lag=None, lag_s=None),
                    flow("send_long", rows=rows // 7, lag=None, lag_s=None),
                ]
                worker.report(run={"flows": flows})

    with Admin(bootstrap) as admin:
        create_topics(admin)
        for name in ("page-views", "long-views"):
            admin.create_topic(name, partitions=1)
    with ThreadPoolExecutor(1) as thread:
        reporting = thread.submit(work)
        try:
            yield
        finally:
            stop.set()
            reporting.result(120)


if __name__ == "__main__":
    main()
