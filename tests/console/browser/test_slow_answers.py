"""A console whose answers take longer than the interval at which its pages are refreshed."""

from __future__ import annotations

from typing import Any

import pytest

TOPIC = {
    "name": "orders",
    "partitions": 1,
    "replication_factor": 1,
    "size_bytes": 0,
    "records_per_s": 0,
    "offline": 0,
    "under_replicated": 0,
}
GROUP = {"group": "orders", "state": "STABLE", "members": 1, "lag": 0, "topics": []}
QUEUE = {
    "topic": "orders",
    "group": "g",
    "state": "STABLE",
    "members": 1,
    "depth": 0,
    "in_flight": 0,
    "oldest_ms": None,
    "redelivered": 0,
    "letters_topic": "",
    "letters": None,
}
DESCRIBED = {**TOPIC, "groups": [], "partition_rows": []}
ANSWERS = {
    "topics": {"topics": [TOPIC], "total": 1},
    "groups": {"groups": [GROUP], "total": 1},
    "queues": {"queues": [QUEUE], "total": 1, "now_ms": 0, "unlisted": 0},
}


@pytest.mark.parametrize("name", ANSWERS)
def test_an_answer_that_takes_long_is_shown(page: Any, name: str) -> None:
    """The page waits for it, and sends no further request that would make it outdated."""
    held: list[Any] = []

    def hold(route: Any) -> None:
        held.append(route)

    page.clock.install()
    page.route(f"**/api/{name}?*", hold)
    with page.expect_request(f"**/api/{name}?*"):
        page.evaluate(f"location.hash = '#/{name}'")
    page.clock.run_for(60_000)
    # The request below has passed the route, so earlier ones have, too. After its answer, the page
    # goes on asking.
    page.evaluate("fetch('/api/groups').then((answer) => answer.text())")
    assert len(held) == 1
    held[0].fulfill(json=ANSWERS[name])
    page.get_by_role("link", name="orders").wait_for()


def test_a_topic_that_no_broker_knew_yet_is_shown_a_moment_later(page: Any) -> None:
    answers: list[dict[str, Any]] = [
        {"status": 404, "json": {"error": "there is no topic orders"}},
        {"json": {**DESCRIBED, "size_bytes": 4096}},
    ]
    asked: list[Any] = []

    def answer(route: Any) -> None:
        asked.append(route)
        route.fulfill(**answers[min(len(asked), len(answers)) - 1])

    page.clock.install()
    page.route("**/api/topics/orders", answer)
    page.evaluate("location.hash = '#/topics/orders/charts'")
    page.get_by_text("there is no topic orders").wait_for()
    page.clock.run_for(5_000)
    page.get_by_text("4.0 KiB on disk").wait_for()
    page.clock.run_for(60_000)
    assert len(asked) == 2


def test_the_audit_page_waits_for_an_answer_before_it_asks_again(page: Any) -> None:
    held: list[Any] = []

    def hold(route: Any) -> None:
        held.append(route)

    page.route("**/api/audit?*", hold)
    with page.expect_request("**/api/audit?*"):
        page.evaluate("location.hash = '#/audit'")
    button = page.get_by_role("button", name="Reload")
    assert button.is_disabled()
    while not held:
        page.wait_for_timeout(20)
    held[0].fulfill(json={"events": [], "left_out": 0})
    page.get_by_text("no events match").wait_for()
    assert button.is_enabled()
