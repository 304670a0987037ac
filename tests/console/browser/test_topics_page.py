"""Tests topics in a browser: search, create, configure, extend and delete."""

from __future__ import annotations

import re
from typing import Any

from console.browser.conftest import Send
from console.running import eventually
from penstock import Admin, BrokerError
from penstock.client.admin.operations import ConfigEntry
from penstock.topic_partition import TopicPartition


def partitions(admin: Admin, topic: str) -> int | None:
    """Returns how many the topic has, and None if it does not exist. One of three brokers answers,
    which may learn of a change a moment after the one that the console asks."""
    try:
        return len(admin.describe_topic(topic).partitions)
    except BrokerError as error:
        assert topic in str(error)
        return None


def setting(admin: Admin, topic: str) -> ConfigEntry:
    return admin.describe_configs(topic=topic)["retention.ms"]


def test_a_topic_is_created_found_and_opened(page: Any, url: str, admin: Admin) -> None:
    """From the form to the cluster, and back to the list and its search. Only visible rows are
    drawn, and other tests have made topics, so the list shows what is searched for."""
    page.goto(f"{url}#/topics")
    page.get_by_label("Search topics").fill("orders.made")
    page.get_by_role("button", name="Create topic").click()
    page.get_by_label("Name", exact=True).fill("orders.made")
    page.get_by_label("Partitions").fill("3")
    page.get_by_label("Replicas").fill("2")
    page.get_by_label("Settings").fill("retention.ms = 1234567")
    page.get_by_role("button", name="Create", exact=True).click()
    page.get_by_role("link", name="orders.made").wait_for()
    # the list may show the topic before the dialog closes
    page.locator("dialog").wait_for(state="detached")
    eventually(lambda: partitions(admin, "orders.made") == 3)
    eventually(lambda: setting(admin, "orders.made").value == "1234567")
    page.keyboard.press("/")
    page.keyboard.type("no such topic")
    page.get_by_text("no topic matches").wait_for()
    page.get_by_label("Search topics").fill("ORDERS made")
    page.get_by_role("link", name="orders.made").click()
    page.get_by_role("heading", name="orders.made").wait_for()


def test_a_refusal_is_shown_in_the_form(page: Any, url: str) -> None:
    """The dialog stays open with the broker's message, and the input is kept."""
    page.goto(f"{url}#/topics")
    page.get_by_role("button", name="Create topic").click()
    page.get_by_label("Name", exact=True).fill("too-many-replicas")
    page.get_by_label("Replicas").fill("9")
    page.get_by_role("button", name="Create", exact=True).click()
    page.locator("dialog .error", has_text="9").wait_for()
    assert page.get_by_label("Name", exact=True).input_value() == "too-many-replicas"


def test_settings_are_changed_and_reset(page: Any, url: str, admin: Admin) -> None:
    """A value set for the topic is distinguished from a default."""
    admin.create_topic("configured", partitions=1)
    page.goto(f"{url}#/topics/configured/settings")
    page.get_by_label("Search settings").fill("retention.ms")
    page.get_by_role("button", name="Change retention.ms", exact=True).click()
    page.get_by_label("Value").fill("86400000")
    page.get_by_role("button", name="Set", exact=True).click()
    page.get_by_text("this topic").wait_for()
    eventually(lambda: setting(admin, "configured").value == "86400000")
    page.get_by_role("button", name="Reset retention.ms", exact=True).click()
    page.get_by_text("this topic").wait_for(state="detached")
    eventually(lambda: setting(admin, "configured").is_default)


def test_partitions_are_shown_and_added(page: Any, url: str, admin: Admin, send: Send) -> None:
    """They are shown with leaders, replicas and offsets."""
    admin.create_topic("growing", partitions=1, replication_factor=3)
    send("growing", *[b"v"] * 5)
    page.goto(f"{url}#/topics/growing/partitions")
    row = page.locator("tbody tr")
    # While the leader answers late, its offsets are shown as dashes.
    row.first.locator("td").nth(5).filter(has_text=re.compile("^5$")).wait_for()
    cells = row.first.locator("td").all_inner_texts()
    assert sorted(cells[2].split(", ")) == ["0", "1", "2"]
    assert cells[4:7] == ["0", "5", "5"]
    page.get_by_role("button", name="Add partitions").click()
    page.get_by_label("Total number of partitions").fill("4")
    page.get_by_role("button", name="Add", exact=True).click()
    row.nth(3).wait_for()
    eventually(lambda: partitions(admin, "growing") == 4)


def test_deleting_needs_the_name_typed(page: Any, url: str, admin: Admin) -> None:
    """A wrong name deletes nothing. The right one deletes the topic, and
    the list no longer shows it."""
    admin.create_topic("doomed", partitions=1)
    page.goto(f"{url}#/topics/doomed/settings")
    page.get_by_role("button", name="Delete topic").click()
    page.get_by_label("Type doomed to confirm").fill("domed")
    page.get_by_role("button", name="Delete for good").click()
    page.locator("dialog .error", has_text="type the topic's name").wait_for()
    assert admin.list_offsets({TopicPartition("doomed", 0): "latest"})
    page.get_by_label("Type doomed to confirm").fill("doomed")
    page.get_by_role("button", name="Delete for good").click()
    page.get_by_label("Search topics").fill("doomed")
    page.get_by_text("no topic matches").wait_for()
    eventually(lambda: partitions(admin, "doomed") is None)
