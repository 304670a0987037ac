"""Tests the rows of tables on the page of a deployed pipeline, in a browser, without Spark."""

from __future__ import annotations

from typing import Any

from console.browser.conftest import Send
from console.fake_worker import EDGES, NODES, FakeWorker
from console.preview_worker import previews
from console.running import eventually
from penstock import Admin
from penstock.spark.deployments import topics
from penstock.spark.deployments.previews import Preview, PreviewRequest

ROWS = Preview([["user", "string"], ["seconds", "int"]], [["<b>ann</b>", "7"], ["bob", None]])


def test_rows_of_a_table_are_shown(
    page: Any, url: str, worker: FakeWorker, bootstrap: str, admin: Admin
) -> None:
    """With columns, types and NULL. Text stays text. An error is shown in place of the rows."""
    asked: list[str] = []

    def answer(request: PreviewRequest) -> Preview:
        asked.append(request.node)
        return ROWS if request.node == "table:page_views" else Preview(error="it is locked")

    worker.deploy()
    worker.report()
    with previews(bootstrap, answer):
        eventually(
            lambda: topics.PREVIEWS in [each.name for each in admin.list_topics(internal=True)], 60
        )
        page.goto(f"{url}#/pipelines/{worker.name}")
        tables = page.locator("#graph .node.table")
        tables.first.click()
        rows = page.locator("#rows")
        button = rows.get_by_role("button")

        def ask() -> None:
            with page.expect_response("**/api/read/preview/*"):
                button.click()
            # Rows or an error, in place of what was there while it was asked.
            rows.get_by_role("button", name="Show rows again", disabled=False).wait_for()

        def has_rows() -> bool:
            ask()
            return bool(rows.locator("td").count())

        def is_refused() -> bool:
            ask()
            return bool(rows.get_by_text("it is locked").count())

        # The worker may not read the topic yet, and the console not know it.
        eventually(has_rows, 120)
        assert rows.locator("th").all_inner_texts() == ["user string", "seconds int"]
        assert rows.locator("td").all_inner_texts() == ["<b>ann</b>", "7", "bob", "NULL"]
        assert button.inner_text() == "Show rows again"
        tables.nth(1).click()
        # Another request may not be answered in time.
        eventually(is_refused, 120)
    assert set(asked) == {"table:page_views", "table:page_counts"}


def test_a_pipeline_that_does_not_run_has_no_rows(page: Any, url: str, worker: FakeWorker) -> None:
    worker.deploy()
    worker.report("BACKING OFF")
    page.goto(f"{url}#/pipelines/{worker.name}")
    page.locator("#graph .node.table").first.click()
    page.locator("#rows").get_by_role("button").click()
    page.locator("#rows").get_by_text("is not running (backing off)").wait_for()


def test_a_flow_and_a_sink_show_the_records_that_they_write(
    page: Any, url: str, worker: FakeWorker, send: Send
) -> None:
    """Read by the console itself, so the pipeline need not run. A view has no rows, and says so."""
    value = f"<i>{worker.name}</i>".encode()
    send("long-views", value, key=b"ann")
    worker.deploy()
    view = {"id": "view:v", "kind": "view", "name": "v"}
    worker.report("BACKING OFF", run={"graph": {"nodes": [*NODES, view], "edges": EDGES}})
    page.goto(f"{url}#/pipelines/{worker.name}")
    rows = page.locator("#rows")
    for kind in ("flow", "sink"):
        page.locator(f"#graph .node.{kind}").first.click()
        rows.get_by_role("button", name="Show rows").click()
        rows.get_by_text("topic long-views: at most 50 of the newest records").wait_for()
        assert rows.locator("th").first.inner_text() == "topic string"
        cells = rows.locator("tr", has_text=value.decode()).locator("td").all_inner_texts()
        assert (cells[0], cells[1], cells[4], cells[5]) == (
            "long-views", "0", "ann", value.decode(),
        )  # fmt: skip
    page.locator("#graph .node.view").first.click()
    page.locator("#node").get_by_text("A view has no rows of its own").wait_for()
    rows.get_by_role("button").wait_for(state="detached")
