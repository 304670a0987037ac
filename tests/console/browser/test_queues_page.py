"""Tests the pages of queues in a browser, with real share groups."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from client.queues.test_dead_letters import set_letters, taken
from console.browser.conftest import Send
from penstock import Admin, Job, Queue
from penstock.testing.slowness import patient


def limit_s() -> float:
    """How long to wait; longer while the machine is busy."""
    return patient(60.0)


def press(page: Any, name: str, *, within: str = "body") -> None:
    """Presses a button when it can be pressed. Playwright waits until it stands still, and tries
    again if the page replaces it meanwhile."""
    button = page.locator(within).get_by_role("button", name=name, exact=True)
    button.wait_for()
    button.click()


@contextmanager
def working(bootstrap: str, topic: str, number: int) -> Iterator[None]:
    """A worker that holds so many jobs, in another thread: Playwright has an event loop in this
    one."""
    with ThreadPoolExecutor(1) as thread:
        queue = thread.submit(Queue, bootstrap, topic, client_id="resizer", prefetch=number).result(
            limit_s()
        )
        try:
            for _ in range(number):
                assert thread.submit(queue.take, limit_s()).result(2 * limit_s()) is not None
            yield
        finally:
            thread.submit(queue.close).result(limit_s())


def test_a_queue_is_listed_described_and_charted(
    page: Any, url: str, admin: Admin, send: Send, bootstrap: str
) -> None:
    """From the list to the page of the queue, while a worker has two of three jobs."""
    admin.create_topic("resize", partitions=1)
    send("resize", b"cat.png", b"dog.png", b"<b>owl</b>.png")
    with working(bootstrap, "resize", 2):
        page.goto(f"{url}#/queues")
        row = page.locator("#queues tbody tr", has_text="resize")
        row.locator("td", has_text="stable").wait_for()
        row.locator("td:nth-child(6)", has_text="2").wait_for()
        cells = row.locator("td").all_inner_texts()
        assert cells[:6] == ["resize", "resize", "stable", "1", "3", "2"]
        assert cells[7:] == ["0", "\u2013"]
        page.get_by_label("Search queues").fill("nothing like it")
        page.get_by_text("no queues yet").wait_for()
        page.get_by_label("Search queues").fill("resi")
        page.get_by_role("link", name="resize", exact=True).click()
        page.locator("#facts", has_text="3 jobs not done, 2 in flight").wait_for()
        page.locator("#queue-members", has_text="resizer").wait_for()
        page.locator("#depth-chart .legend", has_text="in flight 2").wait_for()
        page.locator("#depth-chart .legend", has_text="not done 3").wait_for()
        page.locator("#oldest-chart canvas").wait_for()
        page.locator("#queue-letters", has_text="no dead-letter topic").wait_for()
        assert page.get_by_role("button", name="Redrive dead letters").is_hidden()
        partition = page.locator("#queue-partitions tbody td").all_inner_texts()
        assert partition[:5] == ["0", "0", "3", "3", "2"]
    page.locator("#queue-members", has_text="no worker of this group is running").wait_for()
    page.locator("#facts", has_text="3 jobs not done, 0 in flight").wait_for()


def test_peek_shows_jobs_and_takes_none(
    page: Any, url: str, admin: Admin, send: Send, bootstrap: str
) -> None:
    """Their content is text, whatever it looks like. The button keeps its place meanwhile."""
    admin.create_topic("peeked", partitions=1)
    send("peeked", b"<b>owl</b>.png", key=b"owls")
    with working(bootstrap, "peeked", 1):
        page.goto(f"{url}#/queues/peeked/peeked")
        page.locator("#facts", has_text="1 job not done, 1 in flight").wait_for()
        send("peeked", b'{"resize": "cat.png"}', headers=[("origin", b"web")])
        page.locator("#facts", has_text="2 jobs not done, 1 in flight").wait_for()
        press(page, "Peek")
        jobs = page.locator("#queue-jobs article")
        jobs.nth(1).wait_for()
        assert jobs.nth(0).locator(".value").inner_text() == "<b>owl</b>.png"
        assert jobs.nth(0).locator(".key pre").inner_text() == "owls"
        assert jobs.nth(1).get_by_text("origin: web").is_visible()
        page.locator("#facts", has_text="2 jobs not done, 1 in flight").wait_for()


def test_dead_letters_are_sent_back_after_the_plan_was_shown(
    page: Any, url: str, admin: Admin, send: Send, bootstrap: str
) -> None:
    """The answers of the console are given here, so that one of them is a refusal. The test below
    has real letters."""
    admin.create_topic("mended", partitions=1)
    send("mended", b"x")
    asked: list[tuple[str, dict[str, Any]]] = []
    plan = {
        "topic": "dlq", "total": 3, "read": 3, "sent": {"mended": 2}, "left": 1, "unknown": 0,
        "without_copy": 4, "errors": [["<i>no</i> space", 2]],
    }  # fmt: skip

    def with_letters(route: Any) -> None:
        answer = route.fetch()
        route.fulfill(json={**answer.json(), "letters_topic": "dlq", "letters": 3})

    def planned(route: Any) -> None:
        asked.append(("plan", json.loads(route.request.post_data)))
        route.fulfill(json=plan)

    def changed(route: Any) -> None:
        asked.append(("change", json.loads(route.request.post_data)))
        refusal = {"error": "this user may not redrive dlq: it needs Read"}
        refused = len([kind for kind, _ in asked if kind == "change"]) == 1
        route.fulfill(status=403 if refused else 200, json=refusal if refused else {"number": 1})

    page.route("**/api/queue?*", with_letters)
    page.route("**/api/read/redrive", planned)
    page.route("**/api/change/redrive", changed)
    with working(bootstrap, "mended", 1):
        page.goto(f"{url}#/queues/mended/mended")
        page.locator("#queue-letters", has_text="At most 3 in dlq").wait_for()
        press(page, "Redrive dead letters")
        dialog = page.locator("dialog")
        dialog.get_by_label("Only those whose error contains this text").fill("space")
        dialog.get_by_label("At most (empty: all)").fill("many")
        press(page, "Show what would be sent", within="dialog")
        dialog.locator(".error", has_text="the limit must be a whole number").wait_for()
        dialog.get_by_label("At most (empty: all)").fill("10")
        press(page, "Show what would be sent", within="dialog")
        dialog.locator("#plan", has_text="2 jobs to mended").wait_for()
        dialog.locator("#plan", has_text="Left in dlq, with other errors: 1").wait_for()
        dialog.locator("#plan", has_text="does not copy records to its dead letters: 4").wait_for()
        dialog.locator("#plan", has_text="2 x <i>no</i> space").wait_for()
        press(page, "Send them back", within="dialog")
        dialog.locator(".error", has_text="may not redrive dlq").wait_for()
        press(page, "Send them back", within="dialog")
        page.get_by_text("the redrive has started").wait_for()
        dialog.wait_for(state="detached")
    body = {"group": "mended", "to": "", "error": "space", "limit": 10}
    assert asked == [("plan", body), ("change", body), ("change", body)]


def test_a_rejected_job_is_redriven_and_done(
    page: Any, url: str, admin: Admin, bootstrap: str
) -> None:
    """A worker rejects a job, the broker writes the letter, and the page sends it back."""
    admin.create_topic("ailing", partitions=1)
    set_letters(admin, "ailing")

    def worked(queue: Queue[bytes], settle: Callable[[Job[bytes]], None]) -> bytes | None:
        job = taken(queue)
        settle(job)
        return job.value

    with ThreadPoolExecutor(1) as thread:
        queue = thread.submit(Queue, bootstrap, "ailing").result(limit_s())
        try:
            thread.submit(queue.put, b"owl.png").result(limit_s())
            thread.submit(worked, queue, lambda job: job.reject()).result(2 * limit_s())
            page.goto(f"{url}#/queues/ailing/ailing")
            page.locator("#queue-letters", has_text="At most 1 in dlq.ailing").wait_for()
            press(page, "Redrive dead letters")
            dialog = page.locator("dialog")
            press(page, "Show what would be sent", within="dialog")
            dialog.locator("#plan", has_text="1 job to ailing").wait_for()
            press(page, "Send them back", within="dialog")
            page.get_by_text("the redrive has started").wait_for()
            done = thread.submit(worked, queue, lambda job: job.done()).result(2 * limit_s())
            assert done == b"owl.png"
            page.locator("#facts", has_text="0 jobs not done").wait_for()
        finally:
            thread.submit(queue.close).result(limit_s())
