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
