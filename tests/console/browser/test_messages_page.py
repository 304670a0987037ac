"""Tests messages in a browser: read by offset and time, filter, follow, send and replay."""

from __future__ import annotations

import io
import json
from typing import Any

import fastavro
import pytest

from console.browser.conftest import Send
from penstock import Admin
from penstock.topic_partition import TopicPartition

SCRIPT = b'<img src=x onerror="window.hit=1"><script>window.hit=2</script>'
SCHEMA = {"type": "record", "name": "Sale", "fields": [{"name": "sku", "type": "string"}]}


@pytest.fixture(scope="module")
def orders(admin: Admin, send: Send) -> str:
    """Ten orders, one second apart, the last two with a header."""
    admin.create_topic("orders", partitions=2)
    for number in range(10):
        value = json.dumps({"id": number, "state": "failed" if number == 3 else "paid"})
        headers = [("trace-id", b"t%d" % number)] if number >= 8 else []
        send(
            "orders",
            value.encode(),
            key=b"customer-%d" % number,
            partition=number % 2,
            headers=headers,
            timestamp_ms=1_750_000_000_000 + number * 1000,
        )
    return "orders"


def ids(page: Any, count: int) -> list[int]:
    rows = page.locator("#messages .value")
    rows.nth(count - 1).wait_for()
    assert rows.count() == count
    return [json.loads(text)["id"] for text in rows.all_inner_texts()]


def read(page: Any) -> None:
    page.get_by_role("button", name="Read", exact=True).click()
    page.locator("#messages-note", has_text="shown").wait_for()


def test_the_newest_messages_come_first(page: Any, url: str, orders: str) -> None:
    """All partitions together, ordered by time, with keys and headers."""
    page.goto(f"{url}#/topics/{orders}")
    assert ids(page, 10) == [*range(9, -1, -1)]
    assert page.get_by_text("customer-9").is_visible()
    assert page.get_by_text("trace-id: t9").is_visible()


def test_messages_by_partition_offset_and_time(page: Any, url: str, orders: str) -> None:
    """From an offset in one partition, or from a time in all of them."""
    page.goto(f"{url}#/topics/{orders}")
    ids(page, 10)
    page.get_by_label("Partition").select_option("1")
    page.get_by_label("Start", exact=True).select_option("offset")
    page.get_by_label("Start position").fill("2")
    read(page)
    assert ids(page, 3) == [5, 7, 9]
    page.get_by_label("Partition").select_option("")
    page.get_by_label("Start", exact=True).select_option("time")
    page.get_by_label("Start position").fill("2025-06-15 15:06:46")
    read(page)
    assert ids(page, 4) == [6, 7, 8, 9]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('value.state = "failed"', [3]),
        ("key ~ CUSTOMER-7", [7]),
        ("header.trace-id = t8 or offset = 0 and partition = 0", [8, 0]),
    ],
)
def test_filters_select_messages(
    page: Any, url: str, orders: str, text: str, found: list[int]
) -> None:
    """By a JSON field, by key, by header, and by partition and offset."""
    page.goto(f"{url}#/topics/{orders}")
    ids(page, 10)
    page.get_by_label("Filter", exact=True).fill(text)
    read(page)
    assert ids(page, len(found)) == found


def test_an_invalid_filter_is_explained(page: Any, url: str, orders: str) -> None:
    """The explanation is shown in place of the messages."""
    page.goto(f"{url}#/topics/{orders}")
    ids(page, 10)
    page.get_by_label("Filter", exact=True).fill("value.state =")
    page.get_by_role("button", name="Read", exact=True).click()
    page.locator("#messages .error", has_text="a value after =").wait_for()


def test_new_messages_appear_while_the_page_is_open(
    page: Any, url: str, admin: Admin, send: Send
) -> None:
    """In live mode, new messages that match the filter are shown, until Stop."""
    admin.create_topic("live", partitions=1)
    page.goto(f"{url}#/topics/live")
    page.get_by_label("Filter", exact=True).fill("value ~ yes")
    page.get_by_role("button", name="Live").click()
    page.get_by_text("live: new messages appear here").wait_for()
    send("live", b"no", b"yes: one")
    page.get_by_text("yes: one").wait_for()
    assert page.locator("#messages .message").count() == 1
    page.get_by_role("button", name="Stop").click()
    page.get_by_text("stopped").wait_for()


def test_messages_are_shown_in_several_formats(
    page: Any, url: str, admin: Admin, send: Send
) -> None:
    """Bytes as hex, Avro by a schema, JSON indented with its numbers unchanged."""
    admin.create_topic("formats", partitions=1)
    sale = io.BytesIO()
    fastavro.schemaless_writer(sale, fastavro.parse_schema(SCHEMA), {"sku": "shoe"})
    send("formats", sale.getvalue(), b'{"price":1.10}')
    page.goto(f"{url}#/topics/formats")
    shown = page.locator("#messages .value")
    shown.nth(1).wait_for()
    assert shown.nth(1).inner_text() == "00000000  08 73 68 6f 65" + " " * 35 + "|.shoe|"
    page.get_by_role("button", name="Indent").click()
    page.get_by_text('"price": 1.10').wait_for()
    page.get_by_label("Show as").select_option("avro")
    page.get_by_label("Avro schema").fill(json.dumps(SCHEMA))
    read(page)
    page.get_by_text('"sku": "shoe"').wait_for()


def test_a_script_in_a_message_stays_text(page: Any, url: str, admin: Admin, send: Send) -> None:
    """In value, key, header and format: it is shown as text, and no part of it runs."""
    admin.create_topic("scripts", partitions=1)
    send("scripts", SCRIPT, key=SCRIPT, headers=[(SCRIPT.decode(), SCRIPT)])
    page.goto(f"{url}#/topics/scripts")
    value = page.locator("#messages .value")
    value.wait_for()
    assert value.inner_text() == SCRIPT.decode()
    assert page.locator("#messages img, #messages script").count() == 0
    page.get_by_role("button", name="Send again").click()
    page.get_by_label("Value", exact=True).wait_for()
    assert page.evaluate("window.hit") is None


def test_a_large_message_is_cut_until_requested(
    page: Any, url: str, admin: Admin, send: Send
) -> None:
    """The list has a thousand characters of it; "Show all" shows everything."""
    admin.create_topic("large", partitions=1)
    send("large", b"x" * 1_000_000 + b"END")
    page.goto(f"{url}#/topics/large")
    value = page.locator("#messages .value")
    value.wait_for()
    assert len(value.inner_text()) < 1_100
    page.get_by_role("button", name="Show all").click()
    value.filter(has_text="xEND").wait_for()
    assert page.evaluate("document.querySelector('.value').textContent.length") == 1_000_003


def test_a_message_is_produced(page: Any, url: str, admin: Admin) -> None:
    """With key, headers and partition. The list shows it at once, with the command to read it."""
    admin.create_topic("typed", partitions=2)
    page.goto(f"{url}#/topics/typed")
    page.get_by_role("button", name="Produce").click()
    page.get_by_label("Key").fill("ann")
    page.get_by_label("Value", exact=True).fill("hello\nworld")
    page.get_by_label("Headers").fill("via=console")
    page.locator("dialog").get_by_label("Partition").select_option("1")
    page.get_by_role("button", name="Send", exact=True).click()
    page.locator("#messages .value", has_text="hello").wait_for()
    assert page.locator("#messages .value").inner_text() == "hello\nworld"
    assert page.get_by_text("via: console").is_visible()
    page.get_by_role("button", name="Copy command").click()
    page.get_by_text("copied: penstock consume typed").wait_for()
    copied = page.evaluate("navigator.clipboard.readText()")
    assert copied.endswith("--partition 1 --offset 0 --max-messages 1")


def test_a_range_is_replayed_to_another_topic(
    page: Any, url: str, orders: str, admin: Admin
) -> None:
    """Only messages that match the filter, with their keys. The page reports when it is done."""
    admin.create_topic("again", partitions=2)
    page.goto(f"{url}#/topics/{orders}")
    page.get_by_role("button", name="Replay to another topic").click()
    page.get_by_label("To topic").fill("again")
    page.get_by_label("From offset").fill("1")
    page.get_by_label("To offset").fill("4")
    page.get_by_label("Only messages that match").fill('value.state = "paid"')
    page.get_by_label("keep partitions").check()
    page.get_by_role("button", name="Replay", exact=True).click()
    page.get_by_text("done: 5 records sent to again").wait_for()
    ends = admin.list_offsets({TopicPartition("again", each): "latest" for each in (0, 1)})
    assert [end.offset for end in ends.values() if end is not None] == [3, 2]
    page.goto(f"{url}#/topics/again")
    assert ids(page, 5) == [7, 6, 5, 4, 2]
