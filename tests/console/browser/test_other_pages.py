"""Tests overview, groups, brokers and pipelines in a browser.

Also by keyboard, with the dark theme and on a small screen.
"""

from __future__ import annotations

import json
import re
import threading
from pathlib import Path
from typing import Any

import pytest

from console.browser.conftest import Send, until_shown
from console.running import Stalls, eventually
from penstock import Admin, Consumer
from penstock.client.admin import moves as replica_moves
from penstock.metadata.config_types import ConfigSource
from penstock.runtime import SystemClock
from penstock.spark.reports import TOPIC, TOPIC_SETTINGS, Report
from penstock.testing.broker import Broker
from penstock.testing.slowness import patient
from penstock.topic_partition import TopicPartition

SOON_S = 5.0
DYNAMIC = ConfigSource.DYNAMIC_BROKER_CONFIG


@pytest.fixture(scope="module")
def group(admin: Admin, send: Send) -> str:
    """A group without members, with a lag of three of ten records."""
    admin.create_topic("billed", partitions=1)
    send("billed", *[b"%d" % number for number in range(10)])
    admin.alter_group_offsets("billing", {TopicPartition("billed", 0): 7})
    return "billing"


def test_the_overview_shows_counts_and_charts(
    page: Any, url: str, admin: Admin, send: Send
) -> None:
    """Brokers, the controller, and the rates of records as they are written."""
    admin.create_topic("busy", partitions=1)
    written = page.locator(".card", has_text=re.compile(r"[1-9][\d.,]*/s\s*records written"))
    sizes = page.locator(".card", has_text=re.compile(r"[1-9][\d.,]* \w+/s\s*bytes written"))
    drawn = page.locator("#written canvas"), page.locator("#bytes-written canvas")
    until_shown(
        page,
        [written, sizes, *drawn],
        lambda: send("busy", *[b"v" * 100] * 50),
        200,
        "what is not drawn",
    )
    # A broker that answers late is not counted for a moment.
    page.locator(".card", has_text=re.compile(r"^3\s*brokers$")).wait_for()
    page.locator(".card", has_text=re.compile(r"^broker \d\s*controller$")).wait_for()
    assert page.locator("#overview-brokers tbody tr").count() == 3


def test_a_group_page_shows_lag(page: Any, url: str, group: str) -> None:
    """From the list to the partitions, with a chart of the lag over time."""
    page.goto(f"{url}#/groups")
    page.get_by_role("link", name=group).click()
    row = page.locator("#group-partitions tbody tr")
    row.locator("td", has_text="10").wait_for()  # the end offsets are fetched first
    assert row.locator("td").all_inner_texts()[:5] == ["billed", "0", "7", "10", "3"]
    page.locator("#lag-chart canvas").wait_for()
    page.locator("#lag-chart .legend", has_text="all partitions 3").wait_for()
    page.locator("#partition-lag-chart .legend", has_text="billed-0 3").wait_for()


def test_a_reset_is_previewed_before_it_is_done(
    page: Any, url: str, admin: Admin, send: Send
) -> None:
    """The preview changes nothing. The reset does what the preview showed."""
    admin.create_topic("read-again", partitions=1)
    send("read-again", *[b"v"] * 6)
    topic_partition = TopicPartition("read-again", 0)
    admin.alter_group_offsets("repeater", {topic_partition: 5})
    page.goto(f"{url}#/groups/repeater")
    page.get_by_role("button", name="Reset offsets").click()
    page.get_by_label("To", exact=True).select_option("shift")
    page.get_by_label("Offset, number").fill("-3")
    page.get_by_role("button", name="Show what would change").click()
    plan = page.locator("#reset-plan tbody td")
    plan.first.wait_for()
    assert plan.all_inner_texts() == ["read-again", "0", "5", "2", "4"]
    assert admin.group_offsets("repeater")[topic_partition].offset == 5
    page.locator("dialog").last.get_by_role("button", name="Reset offsets").click()
    page.get_by_text("the offsets of repeater were set").wait_for()
    assert admin.group_offsets("repeater")[topic_partition].offset == 2


def test_members_are_shown_and_prevent_a_reset(
    page: Any, url: str, admin: Admin, send: Send, bootstrap: str
) -> None:
    """The page names the members of an active group, and its offsets cannot be reset."""
    admin.create_topic("shared", partitions=1)
    send("shared", b"v")
    with Consumer(
        bootstrap,
        topics="shared",
        group_id="readers",
        client_id="reader-one",
        auto_offset_reset="earliest",
    ) as consumer:
        assert consumer.poll(timeout_ms=int(patient(20_000)))
        consumer.commit()
        page.goto(f"{url}#/groups/readers")
        page.locator("#group-members", has_text="shared-0").wait_for()
        assert "reader-one" in page.locator("#group-members").inner_text()
        page.get_by_role("button", name="Reset offsets").click()
        page.get_by_role("button", name="Show what would change").click()
        page.locator("dialog .error", has_text="stop its consumers first").wait_for()


def test_deleting_a_group_needs_its_name_typed(page: Any, url: str, admin: Admin) -> None:
    """The group is then gone from the cluster."""
    admin.create_topic("left", partitions=1)
    admin.alter_group_offsets("leftover", {TopicPartition("left", 0): 0})
    page.goto(f"{url}#/groups/leftover")
    page.get_by_role("button", name="Delete group").click()
    page.get_by_label("Type leftover to confirm").fill("leftover")
    page.get_by_role("button", name="Delete for good").click()
    page.get_by_text("group leftover was deleted").wait_for()
    assert "leftover" not in {each.group for each in admin.list_groups()}


def test_a_broker_is_drained_and_the_cluster_rebalanced(page: Any, url: str, admin: Admin) -> None:
    """The plan is shown first, progress while it runs, and the result afterwards."""
    admin.create_topic("spread", partitions=6, replication_factor=1)
    page.goto(f"{url}#/brokers")
    page.locator("#disks progress").first.wait_for()
    page.get_by_role("button", name="Drain broker 1").click()
    page.locator("#plan").wait_for()
    page.get_by_label("Bytes per second that each broker may copy").fill("50000000")
    page.locator("dialog").get_by_role("button", name="Drain").click()
    page.locator(".job", has_text="drain broker 1").filter(has_text="done:").wait_for()
    held = {each for part in admin.describe_topic("spread").partitions for each in part.replicas}
    assert held == {0, 2}
    # the throttle is removed
    eventually(lambda: admin.describe_configs(broker=0)[replica_moves.RATE].source != DYNAMIC)
    page.locator("#brokers tbody tr").nth(1).locator("td").nth(5).filter(
        has_text=re.compile("^0$")
    ).wait_for()
    page.locator("#brokers tbody tr", has_text="drained").wait_for()
    page.get_by_role("button", name="Undrain broker 1").click()
    page.get_by_text("broker 1 can receive partitions again").wait_for()
    page.get_by_role("button", name="Undrain broker 1").wait_for(state="detached")
    page.get_by_role("button", name="Rebalance").click()
    page.locator("#plan").wait_for()
    page.locator("dialog").get_by_role("button", name="Rebalance").click()
    page.locator(".job", has_text="rebalance").filter(has_text="done:").wait_for()
    held = {each for part in admin.describe_topic("spread").partitions for each in part.replicas}
    assert held == {0, 1, 2}
    page.get_by_role("button", name="Elect preferred leaders").click()
    page.locator(".toast", has_text=re.compile("no election|new leader")).wait_for()


def test_a_broker_failure_and_its_recovery_are_shown(
    page: Any, url: str, cluster: list[Broker]
) -> None:
    """The broker is killed while the page is open. The page reports it within five seconds (on an
    idle machine), and shows a healthy cluster once it is back."""
    page.goto(url)
    page.locator("#standing.good").wait_for()
    clock = SystemClock()
    try:
        with Stalls() as stalls:
            killed = clock.monotonic()
            cluster[2].kill()
            page.locator("#problems .critical", has_text="broker 2 is not responding").wait_for()
            took_s = clock.monotonic() - killed
        assert took_s < patient(SOON_S) + stalls.seconds
        assert "problem" in page.locator("#standing").inner_text()
        page.locator("#problems .critical", has_text="broker 2 is not running").wait_for()
    finally:
        cluster[2].start()
    page.wait_for_function(
        """() => document.querySelector("#standing.good")
             && !document.querySelector("#problems .problem")"""
    )
    told = page.locator("#events").inner_text()
    assert "broker 2 is not responding" in told
    assert "broker 2 has joined the cluster" in told


def test_pipelines_are_shown_with_their_last_error(
    page: Any, url: str, state_home: Path, tmp_path: Path
) -> None:
    """From the file that a run wrote: rows, rates, batch time, lag, and why it failed."""
    project = tmp_path / "views"
    (project / ".penstock").mkdir(parents=True)
    (project / "spark-pipeline.yml").write_text("name: views\n")
    flow = {
        "name": "clicks", "status": "RUNNING", "rows": 1200, "streaming": True, "rows_per_s": 80.4,
        "lag": 17, "batch": 3, "batch_rows": 100, "batch_at": "", "batch_ms": 1500, "error": "",
    }  # fmt: skip
    broken = {**flow, "name": "totals", "status": "FAILED", "error": "<b>no such column</b>"}
    run = {
        "name": "views", "state": "FAILED", "round": 2, "master": "local[*]", "pid": 1,
        "started_ms": 1_750_000_000_000, "updated_ms": 1_750_000_060_000,
        "error": "one flow failed", "flows": [flow, broken],
    }  # fmt: skip
    (project / ".penstock" / "last-run.json").write_text(json.dumps(run))
    (state_home / "penstock").mkdir(exist_ok=True)
    known = {"projects": [str(project)]}
    page.goto(f"{url}#/pipelines")
    page.get_by_text("No pipelines of this user yet").wait_for()
    (state_home / "penstock" / "pipelines.json").write_text(json.dumps(known))
    rows = page.locator("#pipelines tbody tr")
    rows.nth(1).wait_for()
    cells = rows.first.locator("td").all_inner_texts()
    assert cells == ["clicks", "running", "1,200", "80", "1.5 s", "17", ""]
    assert rows.nth(1).locator("td").last.inner_text() == "<b>no such column</b>"
    assert page.get_by_text("one flow failed").is_visible()


def report_again(report: Report, send: Send) -> None:
    report.updated_ms = SystemClock().wall_ms()
    send(TOPIC, report.encode(), key=report.id.encode())


def test_streaming_queries_report_themselves(page: Any, url: str, admin: Admin, send: Send) -> None:
    """As `penstock.spark.watch` makes them do. Records that are not reports, or
    contain HTML, do no harm."""
    page.goto(f"{url}#/pipelines")
    page.get_by_text("penstock.spark.watch(spark").wait_for()
    admin.create_topic(TOPIC, partitions=1, configs=TOPIC_SETTINGS)
    now_ms = SystemClock().wall_ms()
    running = Report("q1", "r", "clicks", "shop", "box", updated_ms=now_ms)
    running.rows, running.rows_per_s, running.lag = 120, 80.4, 17
    running.batch, running.batch_ms = 3, 1500
    failed = Report("q2", "r", "<b>x</b>", "shop", "box", updated_ms=now_ms)
    failed.on_end("ValueError: the table is gone", now_ms)
    silent = Report("q3", "r", "left", "shop", "box", updated_ms=now_ms - 200_000)
    for report in (running, failed, silent):
        send(TOPIC, report.encode(), key=report.id.encode())
    send(TOPIC, b"no report", key=b"q4")
    rows = page.locator("#queries tbody tr")
    rows.nth(2).wait_for()
    assert rows.count() == 3
    cells = [row.locator("td").all_inner_texts() for row in rows.all()]
    assert cells[0][:7] == ["clicks", "shop on box", "running", "120", "80", "1.5 s", "17"]
    assert (cells[1][0], cells[1][2], cells[1][8]) == (
        "<b>x</b>", "failed", "ValueError: the table is gone",
    )  # fmt: skip
    assert (cells[2][0], cells[2][2]) == ("left", "no reports")
    shown = [
        page.locator("#query-lag .legend", has_text="clicks 17"),
        page.locator("#query-batches .legend", has_text="clicks 1.5 s"),
    ]
    # The legend shows the values of the last seconds, so the query reports again.
    until_shown(page, shown, lambda: report_again(running, send), 500, "not in the charts")
    send(TOPIC, None, key=b"q3")
    rows.nth(2).wait_for(state="detached")


def test_a_chart_takes_a_name_that_arrives_after_its_values(
    page: Any, url: str, admin: Admin, send: Send
) -> None:
    """The names of queries and the values of the charts come from two requests. The values may
    come first, and then their lines are named by the ids of the queries."""
    report = Report("q9", "r", "late name", "shop", "box")
    report.lag = 23
    report_again(report, send)
    held: list[Any] = []
    is_open = threading.Event()

    def hold(route: Any) -> None:
        if is_open.is_set():
            route.continue_()
        else:
            held.append(route)

    page.route("**/api/pipelines", hold)
    page.goto(f"{url}#/pipelines")
    for name in ("q9 23", "late name 23"):
        shown = [page.locator("#query-lag .legend", has_text=name)]
        until_shown(page, shown, lambda: report_again(report, send), 500, "not in the chart")
        is_open.set()
        # The page waits for the answer before it asks again.
        while held:
            held.pop().continue_()
    page.unroute("**/api/pipelines")
    send(TOPIC, None, key=b"q9")


def test_keyboard_dark_theme_and_small_screen(page: Any, url: str) -> None:
    """Number keys open pages, the theme is remembered, and nothing is wider than a phone's
    screen."""
    page.locator("body").press("2")
    page.get_by_role("heading", name="Topics").wait_for()
    page.get_by_role("button", name="Theme").focus()
    page.keyboard.press("Enter")
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.reload()
    page.get_by_role("heading", name="Topics").wait_for()
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == dark
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.set_viewport_size({"width": 380, "height": 700})
    for each in ("", "#/topics", "#/groups", "#/brokers", "#/pipelines"):
        page.goto(f"{url}{each}")
        page.locator("#standing.good, #standing.warning").wait_for()
        assert page.evaluate("document.documentElement.scrollWidth") <= 380
