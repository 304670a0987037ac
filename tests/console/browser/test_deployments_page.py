"""Tests the pages of deployed pipelines in a browser. Their records are written without Spark.

The fixture `page` fails a test whose page violates its content security policy.
"""

from __future__ import annotations

import re
from itertools import count
from typing import Any

from console.browser.conftest import until_shown
from console.fake_worker import FakeWorker, definition, flow, history
from console.running import eventually

DASH = "\N{EN DASH}"
BROKEN = "transformations/page_views.py, line 14: KeyError: 'seconds'"


def test_without_deployments_the_page_says_how_to_deploy(page: Any, url: str) -> None:
    """The topics do not exist yet, or have no deployments."""
    page.goto(f"{url}#/pipelines")
    page.get_by_text("Deploy one with: penstock pipeline deploy DIR").wait_for()
    page.get_by_text("Start one with: penstock pipeline worker").wait_for()


def test_the_list_shows_what_each_deployment_does(page: Any, url: str, worker: FakeWorker) -> None:
    """State, version, worker, round, rows, lag, failures, next round and the error."""
    worker.deploy()
    page.goto(f"{url}#/pipelines")
    row = page.locator("#deployments tbody tr", has_text=worker.name)
    row.get_by_text("waiting for a worker").wait_for()
    in_two_hours = worker.now_ms() + 7_200_000
    worker.report("BACKING OFF", failures=3, next_ms=in_two_hours, error="<b>no</b> table")
    row.get_by_text("backing off").wait_for()
    cells = row.locator("td").all_inner_texts()
    assert cells[0] == worker.name
    assert cells[2:5] == ["1", worker.worker, "7"]
    assert cells[5:8] == ["0/s", "17, 2.5 s", "3"]
    assert re.fullmatch(r"in (2 h|\d+ min)", cells[8])
    assert cells[9] == "<b>no</b> table"
    machine = page.locator("#workers tbody tr", has_text=worker.worker)
    assert machine.locator("td").all_inner_texts()[1:3] == ["box", worker.name]
    row.get_by_role("link", name=worker.name).click()
    page.get_by_role("heading", name=worker.name, exact=True).wait_for()


def test_a_pipeline_whose_worker_is_silent_is_not_shown_as_running(
    page: Any, url: str, worker: FakeWorker
) -> None:
    """The last report says that it runs, but the worker may have died since."""
    worker.deploy()
    worker.report("RUNNING")
    page.goto(f"{url}#/pipelines/{worker.name}")
    page.locator("#facts .state.good", has_text="running").wait_for()
    worker.beat(updated_ms=worker.now_ms() - 600_000)
    page.locator("#facts .state.bad", has_text="no reports").wait_for()
    page.get_by_text("is not reporting").wait_for()


def test_the_overview_has_figures_flows_and_the_command_that_deploys(
    page: Any, url: str, worker: FakeWorker
) -> None:
    """Rows per second are those between two reports."""
    worker.deploy(settings={"spark.password": "hidden value"}, secrets=["API_KEY"])
    page.goto(f"{url}#/pipelines/{worker.name}")
    page.get_by_text("after the pipeline's first round").wait_for()
    rows = count(50, 50)
    filled = {
        "id": 7,
        "state": "RUNNING",
        "done": 900,
        "total": 1_200,
        "per_s": 60.0,
        "left_s": 5.0,
    }
    shown = page.locator("#figures .card", has_text=re.compile(r"[1-9][\d.,]*/s\s*rows read"))

    def report() -> None:
        views = flow("page_views", rows=next(rows), backfill=filled)
        worker.report(run={"flows": [views, flow("x", streaming=False)]})

    until_shown(page, [shown], report, 500, "the page does not show the rate")
    cells = page.locator("#flows tbody tr").first.locator("td").all_inner_texts()
    assert cells[:2] == ["page_views", "running"]
    assert cells[4:] == [
        "17, 2.5 s",
        "100 in 1.5 s",
        "2026-01-01T10:00:00.000Z",
        "40 rows, 2.0 KiB",
        "3.5 \N{MULTIPLICATION SIGN}, tasks 6 \N{MULTIPLICATION SIGN}",
        "known 2",
        "running: 75 % of 1,200, 60/s, 5 s left",
    ]
    settings = page.locator("#settings").inner_text()
    assert "API_KEY" in settings and "spark.password" in settings
    assert "hidden value" not in page.content()
    assert f"penstock pipeline deploy DIR --name {worker.name}" in settings


def test_the_graph_is_drawn_and_used_with_the_keyboard(
    page: Any, url: str, worker: FakeWorker
) -> None:
    """Nodes in the order of the data, with figures; details with Enter; topics are links."""
    worker.deploy()
    worker.report()
    page.goto(f"{url}#/pipelines/{worker.name}")
    nodes = page.locator("#graph .node")
    nodes.nth(5).wait_for()
    labels = [each.get_attribute("aria-label") for each in nodes.all()]
    assert labels[0].startswith("page-views: topic")
    assert labels[1].startswith("page_views: table") and "lag 17" in labels[1]
    assert labels[5].startswith("long-views: topic")
    places = [each.bounding_box()["x"] for each in nodes.all()]
    assert places == sorted(places)
    assert page.locator("#graph path.edge").count() == 5
    table = page.locator("#graph .node.table").first
    table.focus()
    page.keyboard.press("Enter")
    details = page.locator("#node")
    details.get_by_text("defined in transformations/page_views.py, line 9").wait_for()
    assert "user STRING,page STRING" in details.inner_text()
    assert "watermark 2026-01-01T10:00:00.000Z" in details.inner_text()
    assert "skew 3.5" in details.inner_text() and "tasks 6" in details.inner_text()
    focused = "document.activeElement.getAttribute('aria-label')"
    worker.report(run={"flows": [flow("page_views", lag=23)]})
    page.locator("#graph .node", has_text="lag 23").wait_for()
    assert "lag 23" in page.evaluate(focused), "the figures change, but the focus stays"
    page.keyboard.press("Enter")
    details.get_by_text("defined in").wait_for(state="detached")
    nodes.first.focus()
    page.keyboard.press("Enter")
    page.get_by_role("heading", name="page-views").wait_for()


def test_an_error_shows_the_line_of_the_project_first(
    page: Any, url: str, worker: FakeWorker
) -> None:
    """Of the run, and of a flow, whose node is red."""
    worker.deploy()
    failed = flow("page_views", status="FAILED", error="cannot cast a to INT")
    worker.report("FAILED", error=BROKEN, run={"flows": [failed]})
    page.goto(f"{url}#/pipelines/{worker.name}")
    place = page.locator("#failure code")
    place.wait_for()
    assert place.inner_text() == "transformations/page_views.py, line 14"
    assert page.locator("#failure").inner_text().endswith("KeyError: 'seconds'")
    of_flow = page.locator("#trouble .failure", has_text="cannot cast")
    assert of_flow.locator("code").inner_text() == "transformations/page_views.py, line 9"
    red = page.locator("#graph .node.failed")
    assert red.count() == 1
    assert "cannot cast a to INT" in red.get_attribute("aria-label")


def test_the_overview_of_the_cluster_names_a_pipeline_that_fails(
    page: Any, url: str, worker: FakeWorker
) -> None:
    worker.deploy()
    worker.report("BACKING OFF", failures=3, error=BROKEN)
    page.goto(url)
    told = page.locator(
        "#problems .problem", has_text=f"pipeline {worker.name} has failed 3 times in a row"
    )
    told.wait_for()
    assert BROKEN in told.inner_text()
    told.get_by_role("link", name="See more").click()
    page.get_by_role("heading", name=worker.name, exact=True).wait_for()


def test_the_history_tells_what_happened(page: Any, url: str, worker: FakeWorker) -> None:
    """The newest event first, with time, worker and user; it grows while the page is open."""
    worker.deploy()
    worker.tell("started", "on this machine", version=1, worker=worker.worker)
    page.goto(f"{url}#/pipelines/{worker.name}")
    page.get_by_role("link", name="History").click()
    rows = page.locator("#history tbody tr")
    rows.nth(1).wait_for()
    worker.tell("failed", BROKEN, version=1, worker=worker.worker)
    rows.nth(2).wait_for()
    cells = [row.locator("td").all_inner_texts()[1:] for row in rows.all()]
    assert cells == [
        ["failed", "1", worker.worker, DASH, BROKEN],
        ["started", "1", worker.worker, DASH, "on this machine"],
        ["deployed", "1", DASH, "ann", "version 1"],
    ]


def test_logs_are_followed_and_filtered(page: Any, url: str, worker: FakeWorker) -> None:
    """The last lines, then those that are written while the page is open; only of this one."""
    worker.deploy()
    worker.log([f"line {number}" for number in range(30)])
    FakeWorker(worker._write, "other").log(["of another pipeline"])
    page.goto(f"{url}#/pipelines/{worker.name}/logs")
    log = page.locator("#log")
    log.get_by_text("line 29").wait_for()
    worker.log(["<b>an error</b>"], version=2)
    log.get_by_text("v2 <b>an error</b>").wait_for()
    assert "of another pipeline" not in log.inner_text()
    page.get_by_role("searchbox").fill("ERROR")
    log.get_by_text("line 29").wait_for(state="detached")
    assert len(log.inner_text().strip().splitlines()) == 1


def test_charts_show_the_flows_over_time(page: Any, url: str, worker: FakeWorker) -> None:
    """Rows, lag in records and in time, batch time and rows of state."""
    worker.deploy()
    page.goto(f"{url}#/pipelines/{worker.name}/charts")
    wanted = {
        "#pipeline-lag": "page_views 17",
        "#pipeline-lag-time": "page_views 2.5 s",
        "#pipeline-batches": "page_views 1.5 s",
        "#pipeline-state": "page_views 40",
        "#pipeline-skew": "page_views 3.5",
        "#pipeline-rows": re.compile(r"page_views [1-9]"),
    }
    rows = count(100, 100)
    until_shown(
        page,
        [page.locator(f"{chart} .legend", has_text=text) for chart, text in wanted.items()],
        lambda: worker.report(run={"flows": [flow("page_views", rows=next(rows))]}),
        500,
        "what is not drawn",
    )


def test_start_stop_and_restart(page: Any, url: str, worker: FakeWorker, bootstrap: str) -> None:
    """Each writes a new revision of the definition, and an event that names the change."""
    worker.deploy()
    worker.report()
    page.goto(f"{url}#/pipelines/{worker.name}")
    page.locator("#facts .state.good").wait_for()
    assert page.get_by_role("button", name="Start", exact=True).is_disabled()
    page.get_by_role("button", name="Stop", exact=True).click()
    page.get_by_text(f"{worker.name} will stop").wait_for()
    page.get_by_text("has not reached its worker yet").wait_for()
    found = definition(bootstrap, worker.name)
    assert found is not None and (found.wanted, found.revision) == ("STOPPED", 2)
    page.get_by_role("button", name="Start", exact=True).click()
    page.get_by_text(f"{worker.name} will start").wait_for()
    page.get_by_role("button", name="Restart").click()
    page.get_by_text(f"{worker.name} will restart").wait_for()
    found = definition(bootstrap, worker.name)
    assert found is not None
    assert (found.wanted, found.revision, found.restarts) == ("RUNNING", 4, 1)
    assert [event.what for event in history(bootstrap, worker.name)][-3:] == [
        "stopped", "started", "restarted",
    ]  # fmt: skip


def test_a_refusal_is_shown_as_the_cluster_says_it(page: Any, url: str, worker: FakeWorker) -> None:
    worker.deploy()
    page.goto(f"{url}#/pipelines/{worker.name}")
    page.locator("#facts .state").wait_for()
    refusal = {"error": "this user may not change it: it needs Write on the topic x"}
    page.route("**/api/change/deployment/*", lambda route: route.fulfill(status=403, json=refusal))
    page.get_by_role("button", name="Stop", exact=True).click()
    page.locator(".toast.bad", has_text=refusal["error"]).wait_for()


def test_a_pipeline_that_has_failed_is_started_again(
    page: Any, url: str, worker: FakeWorker, bootstrap: str
) -> None:
    """It should run already, so a restart is asked for."""
    worker.deploy()
    worker.report("FAILED", error=BROKEN)
    page.goto(f"{url}#/pipelines/{worker.name}")
    page.locator("#failure").wait_for()
    page.get_by_role("button", name="Start", exact=True).click()
    page.get_by_text(f"{worker.name} will start").wait_for()
    found = definition(bootstrap, worker.name)
    assert found is not None and (found.wanted, found.restarts) == ("RUNNING", 1)


def test_rolling_back_to_a_version(page: Any, url: str, worker: FakeWorker, bootstrap: str) -> None:
    """The page of versions says which one is current and which one was good last."""
    worker.deploy(1)
    worker.deploy(2)
    worker.report("FAILED", revision=2, version=2, error="it fails")
    page.goto(f"{url}#/pipelines/{worker.name}/versions")
    rows = page.locator("#versions tbody tr")
    # The console may know of a version before it knows that this one is the current one.
    rows.first.get_by_text("current").wait_for()
    assert rows.first.locator("td").all_inner_texts()[:2] == ["2", "current"]
    page.locator("#versions", has_text="last good").wait_for()
    page.get_by_role("button", name="Roll back to version 1").click()
    page.locator("dialog").get_by_role("button", name="Roll back", exact=True).click()
    page.get_by_text(f"{worker.name} will run version 1").wait_for()
    found = definition(bootstrap, worker.name)
    assert found is not None and (found.version, found.wanted) == (1, "RUNNING")
    rows.nth(1).get_by_text("current").wait_for()


def test_a_rollback_asks_about_checkpoints_that_do_not_fit(
    page: Any, url: str, worker: FakeWorker, bootstrap: str
) -> None:
    """What happens to every flow is stated before; nothing is done before all is decided."""
    worker.deploy(1, {"counts": "1:streaming:stateful:s:p:old", "views": "1:streaming:x:s:p:d"})
    worker.deploy(2, {"counts": "1:streaming:stateful:s:p:new", "views": "1:streaming:x:s:p:d"})
    page.goto(f"{url}#/pipelines/{worker.name}/versions")
    page.get_by_role("button", name="Roll back to version 1").click()
    dialog = page.locator("dialog")
    dialog.get_by_text("views: keeps its checkpoint (it did not change)").wait_for()
    go = dialog.get_by_role("button", name="Roll back", exact=True)
    go.click()
    dialog.locator(".error", has_text="choose what happens to counts").wait_for()
    dialog.get_by_label("counts: its checkpoint does not fit").select_option("reset")
    go.click()
    dialog.wait_for(state="detached")
    found = definition(bootstrap, worker.name)
    assert found is not None
    assert (found.version, found.reset_flows, found.reset_revision) == (1, ["counts"], 3)


def test_a_rollback_says_that_a_flow_still_begins_again(
    page: Any, url: str, worker: FakeWorker, bootstrap: str
) -> None:
    """It was asked for with an earlier deploy, and is not done yet."""
    flows = {"counts": "1:streaming:stateful:s:p:d"}
    worker.deploy(1, flows)
    asked = {"reset_flows": ["counts"], "reset_versions": {"counts": 1}, "reset_revision": 2}
    worker.deploy(2, flows, **asked)
    page.goto(f"{url}#/pipelines/{worker.name}/versions")
    page.get_by_role("button", name="Roll back to version 1").click()
    dialog = page.locator("dialog")
    dialog.get_by_text("counts: begins again without its checkpoint").wait_for()
    dialog.get_by_role("button", name="Roll back", exact=True).click()
    dialog.wait_for(state="detached")
    found = definition(bootstrap, worker.name)
    assert found is not None and (found.version, found.reset_flows) == (1, ["counts"])


def test_deleting_needs_the_name_typed(
    page: Any, url: str, worker: FakeWorker, bootstrap: str
) -> None:
    """A wrong name deletes nothing. Afterwards the deployment is gone from the list."""
    worker.deploy()
    page.goto(f"{url}#/pipelines/{worker.name}")
    page.locator("#facts .state").wait_for()
    page.get_by_role("button", name="Delete", exact=True).click()
    page.get_by_label(f"Type {worker.name} to confirm").fill("wrong")
    page.get_by_role("button", name="Delete for good").click()
    page.locator("dialog .error", has_text="type the pipeline's name").wait_for()
    assert definition(bootstrap, worker.name) is not None
    page.get_by_label(f"Type {worker.name} to confirm").fill(worker.name)
    page.get_by_role("button", name="Delete for good").click()
    page.get_by_text(f"{worker.name} was deleted").wait_for()
    assert definition(bootstrap, worker.name) is None
    page.locator("#deployments").get_by_text(worker.name).wait_for(state="detached")
    eventually(lambda: history(bootstrap, worker.name)[-1].what == "deleted")


def test_the_pages_fit_a_small_screen_and_both_themes(
    page: Any, url: str, worker: FakeWorker
) -> None:
    """The graph scrolls within its frame; its colours change with the theme."""
    worker.deploy()
    worker.report()
    page.set_viewport_size({"width": 380, "height": 700})
    for tab in ("", "/charts", "/history", "/logs", "/versions"):
        page.goto(f"{url}#/pipelines/{worker.name}{tab}")
        page.locator("#facts .state").wait_for()
        assert page.evaluate("document.documentElement.scrollWidth") <= 380
    page.goto(f"{url}#/pipelines/{worker.name}")
    page.locator("#graph .node").first.wait_for()
    colour = "getComputedStyle(document.querySelector('#graph .node.table rect')).fill"
    before = page.evaluate(colour)
    page.get_by_role("button", name="Theme").click()
    assert page.evaluate(colour) != before


def test_a_pipeline_that_is_not_deployed(page: Any, url: str, ready: None) -> None:
    page.goto(f"{url}#/pipelines/nothing-here")
    page.get_by_text("there is no deployed pipeline nothing-here").wait_for()
