"""Tests ten thousand topics in a browser: the list is fast to scroll and to search."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import pytest

from console.running import running


@pytest.fixture
def url() -> Iterator[str]:
    with running([sys.executable, "-m", "console.many_topics"]) as found:
        yield found


def test_the_list_handles_ten_thousand_topics(page: Any, url: str) -> None:
    """The last one is one scroll away, and the page contains only the visible rows."""
    page.goto(f"{url}#/topics")
    page.get_by_text("10,000 topics").wait_for()
    page.locator(".list").focus()
    page.keyboard.press("End")
    page.get_by_role("link", name="topic-09999").wait_for()
    assert page.locator(".row").count() < 100
    page.get_by_label("Search topics").fill("04711")
    page.get_by_role("link", name="topic-04711").wait_for()
    page.get_by_text("1 topic", exact=True).wait_for()
    page.goto(f"{url}#/groups")
    page.get_by_role("link", name="group-099").wait_for()
    page.get_by_role("button", name="More").click()
    page.get_by_role("link", name="group-199").wait_for()
