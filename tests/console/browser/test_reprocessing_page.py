"""Tests backfills, recomputes and swaps on the page of a deployed pipeline, in a browser.

The records of the pipeline and of its worker are written without Spark.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from console.browser.conftest import Send
from console.fake_worker import FakeWorker, definition, flow, history
from penstock import Admin
from penstock.spark.deployments.generations import swapped
from penstock.spark.deployments.model import BackfillStatus, Deployment
from penstock.topic_partition import TopicPartition

FLOWS = {"page_views": "1:streaming:stateless:s:p:d", "page_counts": "1:batch:stateless:s:p:d"}


@pytest.fixture
def topic(worker: FakeWorker, admin: Admin, send: Send) -> str:
    """A topic of ten records, of which retention has deleted two."""
    name = f"of-{worker.name}"
    admin.create_topic(name, partitions=1)
    send(name, *[b"x"] * 10)
    admin.delete_records({TopicPartition(name, 0): 2})
    return name


def run_of(topic: str, **more: Any) -> dict[str, Any]:
    """The run of a pipeline whose flow began with the seventh record of the topic."""
    seen = {"topics": {topic: 1}, "began": {topic: {"0": 6}}, "backfilled": {}, "stateful": False}
    view = flow("page_views", **{**seen, **more})
    nodes = [
        {"id": f"topic:{topic}", "kind": "topic", "name": topic},
        {"id": "table:page_views", "kind": "table", "name": "page_views", "flow": "page_views"},
        {"id": "table:page_counts", "kind": "table", "name": "page_counts", "flow": "page_counts"},
    ]
    edges = [
        {"from": f"topic:{topic}", "to": "table:page_views"},
        {"from": "table:page_views", "to": "table:page_counts"},
    ]
    counts = flow("page_counts", streaming=False)
    return {"flows": [view, counts], "graph": {"nodes": nodes, "edges": edges}}


def deployed(bootstrap: str, worker: FakeWorker) -> Deployment:
    found = definition(bootstrap, worker.name)
    assert found is not None
    return found


def open_page(page: Any, url: str, worker: FakeWorker) -> None:
    page.goto(f"{url}#/pipelines/{worker.name}")
    page.locator("#facts .state.good").wait_for()


def report_with_lag(page: Any, worker: FakeWorker, run: dict[str, Any]) -> None:
    """Reports a run, and waits until the console knows it."""
    worker.report(run=run)
    page.locator("#flows").get_by_text(f"{run['flows'][0]['lag']:,}").wait_for()


def press(page: Any, name: str) -> None:
    page.get_by_role("button", name=name, exact=True).click()


def press_in_dialog(page: Any, name: str) -> None:
    page.locator("dialog").get_by_role("button", name=name, exact=True).click()


def test_a_backfill_is_planned_begun_followed_and_cancelled(
    page: Any, url: str, worker: FakeWorker, topic: str, bootstrap: str
) -> None:
    """Only streaming flows have one. Nothing is changed before the figures were shown."""
    worker.deploy(1, FLOWS)
    worker.report(run=run_of(topic))
    open_page(page, url, worker)
    line = page.locator("#backfills tbody tr")
    line.get_by_text("page_views").wait_for()
    assert line.count() == 1
    press(page, "Backfill of page_views")
    dialog = page.locator("dialog")
    dialog.get_by_label("From").fill("1d")
    press_in_dialog(page, "Show what would be read")
    plan = dialog.locator("#plan")
    plan.get_by_text("4 records in 1 partition").wait_for()
    plan.get_by_text("Left out, because the flow reads them itself: 4 records").wait_for()
    plan.get_by_text(
        "after the beginning of the range: 2 records, the oldest record there"
    ).wait_for()
    assert deployed(bootstrap, worker).backfills == []

    again = dialog.get_by_label("Read records again that the flow has already read (--again)")
    again.check()
    plan.wait_for(state="detached")
    press_in_dialog(page, "Show what would be read")
    plan.get_by_text("8 records in 1 partition").wait_for()
    plan.get_by_text("Read again: 4 records").wait_for()
    again.uncheck()
    press_in_dialog(page, "Show what would be read")
    plan.get_by_text("4 records in 1 partition").wait_for()
    press_in_dialog(page, "Begin backfill")
    page.get_by_text("backfill 2 reads 4 records into page_views").wait_for()
    dialog.wait_for(state="detached")
    (made,) = deployed(bootstrap, worker).backfills
    assert (made.id, made.again, made.sources) == (2, False, ["page_views"])
    assert made.ranges == {topic: {"0": [[2, 6]]}}

    line.get_by_text("requested: 0 % of 4").wait_for()
    running = BackfillStatus("page_views", made.id, "RUNNING", 1, 4)
    rate = {"id": made.id, "state": "RUNNING", "done": 1, "total": 4, "per_s": 2.0, "left_s": 1.5}
    worker.report(run=run_of(topic, backfill=rate), backfills=[running])
    line.get_by_text("running: 25 % of 4, 2/s, 1.5 s left").wait_for()
    press(page, "Cancel backfill of page_views")
    press_in_dialog(page, "Cancel backfill")
    page.get_by_text("backfill 2 of page_views is being cancelled").wait_for()
    assert deployed(bootstrap, worker).backfills[0].cancelled
    line.get_by_text("cancelling: 25 %").wait_for()
    worker.report(run=run_of(topic), backfills=[replace(running, state="CANCELLED")])
    line.get_by_text("cancelled: 25 %").wait_for()
    assert page.get_by_role("button", name="Backfill of page_views", exact=True).is_enabled()
    assert [event.what for event in history(bootstrap, worker.name)][-2:] == [
        "backfill-requested", "backfill-cancel-requested",
    ]  # fmt: skip


def test_a_backfill_that_is_not_possible_is_explained_in_the_dialog(
    page: Any, url: str, worker: FakeWorker, topic: str, bootstrap: str
) -> None:
    """A wrong time, a range that was read, a flow with state, and a refusal of the cluster."""
    worker.deploy(1, FLOWS)
    worker.report(run=run_of(topic, began={}))
    open_page(page, url, worker)
    press(page, "Backfill of page_views")
    dialog = page.locator("dialog")
    error = dialog.locator(".error")
    dialog.get_by_label("From").fill("soon")
    press_in_dialog(page, "Show what would be read")
    error.get_by_text("from: 'soon' is not a time").wait_for()
    dialog.get_by_label("From").fill("1h")
    dialog.get_by_label("To", exact=True).fill("2h")
    press_in_dialog(page, "Show what would be read")
    error.get_by_text("the range must begin in 1970 or later").wait_for()
    dialog.get_by_label("To", exact=True).fill("")
    press_in_dialog(page, "Show what would be read")
    error.get_by_text("To read them again, add --again").wait_for()
    dialog.locator("#plan").get_by_text("0 records in").wait_for()
    begin = dialog.get_by_role("button", name="Begin backfill")
    assert not begin.count(), "there is nothing to begin"

    report_with_lag(page, worker, run_of(topic, lag=4_711, stateful=True))
    press_in_dialog(page, "Show what would be read")
    error.get_by_text("page_views keeps state or has a watermark").wait_for()
    report_with_lag(page, worker, run_of(topic, lag=4_712))
    press_in_dialog(page, "Show what would be read")
    begin.wait_for()
    refusal = {"error": "this user may not change it: it needs Write on the topic x"}
    page.route("**/api/change/deployment/*", lambda route: route.fulfill(status=403, json=refusal))
    begin.click()
    error.get_by_text(refusal["error"]).wait_for()
    press_in_dialog(page, "Cancel")
    assert deployed(bootstrap, worker).backfills == []


def test_a_recompute_is_begun_followed_swapped_and_swapped_back(
    page: Any, url: str, worker: FakeWorker, topic: str, bootstrap: str
) -> None:
    worker.deploy(1, FLOWS)
    worker.report(run=run_of(topic))
    open_page(page, url, worker)
    story = page.locator("#recompute-story")
    story.get_by_text("No tables are being recomputed.").wait_for()
    press(page, "Recompute")
    dialog = page.locator("dialog")
    assert dialog.get_by_label("page_views").is_checked()
    assert not dialog.get_by_label("page_counts").count(), "it is computed in every round"
    dialog.get_by_label("Swap").select_option("manual")
    dialog.get_by_label("Keep the old tables for").fill("2d")
    press_in_dialog(page, "Check")
    plan = dialog.locator("#plan")
    plan.get_by_text("from the beginning of their topics: page_views").wait_for()
    plan.get_by_text(f"Retention has deleted the first records of {topic} (2 records)").wait_for()
    assert deployed(bootstrap, worker).recompute is None
    press_in_dialog(page, "Begin recompute")
    page.get_by_text(f"the tables of {worker.name} are being recomputed").wait_for()
    made = deployed(bootstrap, worker).recompute
    assert made is not None
    assert (made.tables, made.swap, made.keep_ms) == (["page_views"], "manual", 2 * 86_400_000)

    story.get_by_text("waiting for a worker").first.wait_for()
    reported = {
        "generation": made.generation, "stage": "caught up", "state": "RUNNING", "rounds": 3,
        "caught_up": True, "lag": 17, "served_lag": 4, "error": "",
    }  # fmt: skip
    worker.report(revision=2, run=run_of(topic), recompute=reported)
    story.get_by_text("caught up, running, round 3").wait_for()
    story.get_by_text("New tables: 17 records behind their topics; served tables: 4").wait_for()
    story.get_by_text("The new tables have caught up: press Swap to put them in use.").wait_for()
    press(page, "Swap")
    press_in_dialog(page, "Swap")
    page.get_by_text("will be swapped as soon as the new ones have caught up").wait_for()
    asked = deployed(bootstrap, worker)
    assert asked.recompute is not None and asked.recompute.asked
    page.get_by_role("button", name="Swap", exact=True).wait_for(state="hidden")

    # As a worker does it.
    done = replace(swapped(asked, made.generation, worker.now_ms()), revision=asked.revision + 1)
    worker.define(done)
    worker.report(revision=done.revision, run=run_of(topic), generation=done.generation)
    story.get_by_text("The tables before the last swap, of version 1, are kept until").wait_for()
    press(page, "Swap back")
    press_in_dialog(page, "Swap back")
    page.get_by_text(f"{worker.name} is returning to the tables before the swap").wait_for()
    assert deployed(bootstrap, worker).generation == 0
    assert [event.what for event in history(bootstrap, worker.name)][-3:] == [
        "recompute", "swap-asked", "swapped-back",
    ]  # fmt: skip


def test_a_recompute_is_cancelled(
    page: Any, url: str, worker: FakeWorker, topic: str, bootstrap: str
) -> None:
    """Its error is shown meanwhile."""
    worker.deploy(1, FLOWS)
    worker.report(run=run_of(topic))
    open_page(page, url, worker)
    press(page, "Recompute")
    press_in_dialog(page, "Check")
    press_in_dialog(page, "Begin recompute")
    story = page.locator("#recompute-story")
    story.get_by_text("when they have caught up").wait_for()
    made = deployed(bootstrap, worker).recompute
    assert made is not None and made.swap == "when-caught-up"
    assert page.get_by_role("button", name="Swap", exact=True).is_hidden()
    failed = {"generation": made.generation, "state": "BACKING OFF", "error": "<b>no</b> space"}
    worker.report(revision=2, run=run_of(topic), recompute=failed)
    story.locator(".failure", has_text="<b>no</b> space").wait_for()
    press(page, "Cancel recompute")
    press_in_dialog(page, "Cancel recompute")
    page.get_by_text(f"the recompute of {worker.name} is being cancelled").wait_for()
    assert deployed(bootstrap, worker).recompute is None
    story.get_by_text("No tables are being recomputed.").wait_for()


def test_a_recompute_that_is_not_possible_is_explained_in_the_dialog(
    page: Any, url: str, worker: FakeWorker, topic: str, bootstrap: str
) -> None:
    """No table, a wrong time, and a flow that writes to a topic. Without a graph, the tables are
    typed."""
    worker.deploy(1, {**FLOWS, "send_long": "1:streaming:stateless:s:p:d"})
    worker.report(run={"graph": {}})
    open_page(page, url, worker)
    press(page, "Recompute")
    dialog = page.locator("dialog")
    error = dialog.locator(".error")
    dialog.get_by_label("Tables, separated by commas").fill(" , ")
    press_in_dialog(page, "Check")
    error.get_by_text("name the tables to recompute").wait_for()
    dialog.get_by_label("Tables, separated by commas").fill("page_views, users")
    dialog.get_by_label("Keep the old tables for").fill("long")
    press_in_dialog(page, "Check")
    error.get_by_text("keep: 'long' is not a duration").wait_for()
    dialog.get_by_label("Keep the old tables for").fill("1d")
    press_in_dialog(page, "Check")
    dialog.locator("#plan").get_by_text("page_views, users").wait_for()
    press_in_dialog(page, "Cancel")

    worker.report()
    page.locator("#graph .node.sink").wait_for()
    press(page, "Recompute")
    press_in_dialog(page, "Check")
    error.get_by_text("send_long writes to a topic, and would write its records again").wait_for()
    press_in_dialog(page, "Cancel")
    assert deployed(bootstrap, worker).recompute is None


def test_buttons_keep_the_focus_while_figures_change(
    page: Any, url: str, worker: FakeWorker, topic: str
) -> None:
    """The page reads the state again every two seconds."""
    worker.deploy(1, FLOWS)
    worker.report(run=run_of(topic))
    open_page(page, url, worker)
    page.get_by_role("button", name="Backfill of page_views", exact=True).focus()
    report_with_lag(page, worker, run_of(topic, lag=4_711))
    focused = "document.activeElement.getAttribute('aria-label')"
    assert page.evaluate(focused) == "Backfill of page_views"
    page.keyboard.press("Enter")
    page.locator("dialog").get_by_label("From").wait_for()
    page.keyboard.press("Escape")
    page.locator("dialog").wait_for(state="detached")
