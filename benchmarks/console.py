"""How does the console cope with a cluster of 10,000 topics and 200 groups?

A real broker has `--topics` topics of one partition, some with records, and `--groups` groups with
committed offsets. A real console watches it. Then pages are requested over HTTP one after another,
while the console continues to watch: the topic list from its first page to its last, searched and
sorted, the groups, one topic; and a static file, which costs nothing itself and so shows how long
the console's event loop keeps others waiting. With `--browser` it also measures Chromium: the time
from a key press in the search to the matching rows, and the longest time that a script blocked the
page.

Run it from the project's root: `python -m benchmarks.console --json`.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final
from urllib.parse import urlsplit

from penstock import Admin, NewTopic, Producer, TopicPartition
from penstock.client.errors import BrokerError
from penstock.testing import Broker

TOPICS_PER_REQUEST: Final = 250
WRITTEN: Final = 500
"""Number of topics with a record."""
PAGES: Final = {
    "first page": "/api/topics?limit=100",
    "last page": "/api/topics?limit=100&offset={last}",
    "search": "/api/topics?search=topic-0471&limit=100",
    "by size": "/api/topics?sort=size&descending=true&limit=100",
    "by rate": "/api/topics?sort=rate&descending=true&limit=100",
    "groups": "/api/groups?limit=200",
    "one topic": "/api/topics/topic-00000",
    "static file": "/static/main.js",
}


def fill(bootstrap: str, topics: int, groups: int) -> None:
    names = [f"topic-{number:05}" for number in range(topics)]
    with Admin(bootstrap, request_timeout_ms=600_000, default_api_timeout_ms=600_000) as admin:
        for at in range(0, topics, TOPICS_PER_REQUEST):
            some = [NewTopic(name, 1, 1) for name in names[at : at + TOPICS_PER_REQUEST]]
            failed = [
                each for each in admin.create_topics(some).values() if isinstance(each, BrokerError)
            ]
            if failed:
                raise failed[0]
        with Producer(bootstrap) as producer:
            for name in names[:WRITTEN]:
                producer.send(name, b"v" * 100)
        for number in range(groups):
            topic_partitions = {TopicPartition(names[number % topics], 0): 0}
            admin.alter_group_offsets(f"group-{number:03}", topic_partitions)


@contextmanager
def running_console(bootstrap: str) -> Iterator[str]:
    command = [sys.executable, "-m", "penstock.console.main", "--bootstrap", bootstrap]
    with subprocess.Popen(
        [*command, "--port", "0", "--stop-with-stdin"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield process.stdout.readline().removeprefix("console ").strip()
        finally:
            process.stdin.close()
            process.wait(30)


class Visitor:
    """One browser's connection, kept open."""

    def __init__(self, url: str) -> None:
        topic_partition = urlsplit(url)
        self._connection = http.client.HTTPConnection(
            topic_partition.hostname or "", topic_partition.port, timeout=120
        )
        self._cookie = ""
        answer = self.ask("POST", "/api/session", b"{}")
        self._cookie = answer.headers["set-cookie"].partition(";")[0]

    def ask(self, method: str, path: str, body: bytes | None = None) -> http.client.HTTPResponse:
        headers = {"cookie": self._cookie, "content-type": "application/json"}
        self._connection.request(method, path, body, headers)
        answer = self._connection.getresponse()
        self.body = answer.read()
        if answer.status != 200:
            raise RuntimeError(f"{path}: {answer.status} {self.body!r}")
        return answer

    def json(self, path: str) -> Any:
        self.ask("GET", path)
        return json.loads(self.body)


def wait_for(what: str, look: Callable[[], bool], seconds: float = 300.0) -> float:
    began = time.perf_counter()
    while not look():
        if time.perf_counter() - began > seconds:
            raise RuntimeError(f"{what}: not after {seconds:g} s")
        time.sleep(0.1)
    return time.perf_counter() - began


def time_pages(visitor: Visitor, topics: int, seconds: float) -> dict[str, Any]:
    took: dict[str, list[float]] = {name: [] for name in PAGES}
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        for name, path in PAGES.items():
            began = time.perf_counter()
            visitor.ask("GET", path.format(last=topics - 100))
            took[name].append((time.perf_counter() - began) * 1000)
        time.sleep(0.02)
    return {
        name: {
            "median_ms": round(statistics.median(times), 1),
            "p99_ms": round(statistics.quantiles(times, n=100)[98], 1),
            "max_ms": round(max(times), 1),
            "count": len(times),
        }
        for name, times in took.items()
    }


def time_browser(url: str, topics: int) -> dict[str, Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        browser = driver.chromium.launch(
            executable_path=shutil.which("chromium"),
            args=["--no-sandbox", "--disable-dev-shm-usage"] if os.getuid() == 0 else [],
        )
        page = browser.new_page()
        page.set_default_timeout(60_000)
        page.add_init_script(
            "window.longest = 0; new PerformanceObserver((list) => { for (const each of "
            "list.getEntries()) window.longest = Math.max(window.longest, each.duration); })"
            ".observe({type: 'longtask', buffered: true});"
        )
        page.goto(f"{url}#/topics")
        page.locator(".row").first.wait_for()
        searched = []
        for number in range(10):
            wanted = f"topic-{number * topics // 11:05}"
            began = time.perf_counter()
            page.get_by_label("Search topics").fill(wanted)
            page.get_by_role("link", name=wanted).wait_for()
            page.get_by_text("1 topic", exact=True).wait_for()
            searched.append((time.perf_counter() - began) * 1000)
        page.get_by_label("Search topics").fill("")
        page.get_by_text(f"{topics:,} topics").wait_for()
        page.locator(".list").focus()
        began = time.perf_counter()
        page.keyboard.press("End")
        page.get_by_role("link", name=f"topic-{topics - 1:05}").wait_for()
        scrolled = (time.perf_counter() - began) * 1000
        rows = page.locator(".row").count()
        page.wait_for_timeout(6_000)
        longest = page.evaluate("window.longest")
        browser.close()
    return {
        "search_ms": round(statistics.median(searched), 1),
        "to_the_end_ms": round(scrolled, 1),
        "rows_drawn": rows,
        "longest_task_ms": round(longest, 1),
    }


def measure(bootstrap: str, given: argparse.Namespace) -> dict[str, Any]:
    began = time.perf_counter()
    fill(bootstrap, given.topics, given.groups)
    result: dict[str, Any] = {
        "topics": given.topics,
        "groups": given.groups,
        "made_s": round(time.perf_counter() - began, 1),
    }
    with running_console(bootstrap) as url:
        visitor = Visitor(url)

        def all_is_listed() -> bool:
            topics = visitor.json("/api/topics")["total"]
            groups = visitor.json("/api/groups")["total"]
            return bool(topics == given.topics and groups == given.groups)

        result["listed_s"] = round(wait_for("all topics and groups", all_is_listed), 1)
        result["pages"] = time_pages(visitor, given.topics, given.seconds)
        if not given.json:
            for name, times in result["pages"].items():
                line = f"median {times['median_ms']:7.1f} ms   p99 {times['p99_ms']:7.1f} ms"
                print(f"{name:12} {line}", flush=True)
        if given.browser:
            result["browser"] = time_browser(url, given.topics)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--topics", type=int, default=10_000)
    parser.add_argument("--groups", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=60.0, help="how long pages are asked for")
    parser.add_argument("--browser", action="store_true", help="also in Chromium")
    parser.add_argument("--json", action="store_true", help="only the result, as one object")
    given = parser.parse_args()
    broker = Broker({"open_files_max": "500"})
    broker.start()
    try:
        result = measure(broker.bootstrap, given)
    finally:
        broker.kill()  # closing so many logs cleanly is not measured
        broker.close()
    result["load_average"] = round(os.getloadavg()[0], 1)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
