"""Tests in a browser that a project is chosen, planned and deployed. No worker runs it.

The fixture `page` fails a test whose page violates its content security policy.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("yaml", reason='pipelines need PySpark: pip install "penstock[spark]"')

from console.fake_worker import FakeWorker, definition, history
from console.projects import packed, project
from penstock.spark.deployments.project_files import prepare

FOLDER, ARCHIVE = "Folder of the project", "Or an archive of it (zip)"
LOOK = "Show what would happen"


def written(folder: Path, files: Mapping[str, str]) -> Path:
    for path, text in files.items():
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return folder


def zipped(name: str, key: str = "user") -> dict[str, Any]:
    """Returns an archive as Playwright chooses it."""
    buffer = packed(project(name, key), "a folder/")
    return {"name": "project.zip", "mimeType": "application/zip", "buffer": buffer}


def test_a_folder_is_deployed(
    page: Any, url: str, worker: FakeWorker, bootstrap: str, tmp_path: Path
) -> None:
    """First the page says what would happen, and changes nothing. Then it shows the pipeline."""
    ignored = {".git/config": "x", "deep/__pycache__/a.pyc": "x", "deep/er/\N{SNOWMAN}.txt": "x"}
    folder = written(tmp_path / "views", {**project("not-this-name"), **ignored})
    page.goto(f"{url}#/pipelines")
    page.get_by_role("button", name="Deploy a pipeline").click()
    dialog = page.locator("dialog")
    dialog.get_by_label(FOLDER).set_input_files(str(folder))
    dialog.get_by_label("Name").fill(worker.name)
    dialog.get_by_label("Schedule", exact=True).select_option("every")
    dialog.get_by_label("Time of the schedule").fill("10m")
    dialog.get_by_label("Note for the history").fill("<b>first</b>")
    dialog.get_by_label("Deploy without starting").check()
    dialog.get_by_role("button", name=LOOK).click()
    plan = dialog.locator("#plan")
    plan.get_by_text("counts: new; it starts without a checkpoint").wait_for()
    plan.get_by_text(f"{worker.name} is deployed for the first time").wait_for()
    assert definition(bootstrap, worker.name) is None
    dialog.get_by_role("button", name="Deploy", exact=True).click()
    page.get_by_text(f"{worker.name} version 1 is deployed").wait_for()
    page.get_by_role("heading", name=worker.name, exact=True).wait_for()
    page.locator("#facts", has_text="every 600 s").wait_for()
    found = definition(bootstrap, worker.name)
    assert found is not None
    assert (found.version, found.wanted, found.schedule.every_s) == (1, "STOPPED", 600.0)
    assert history(bootstrap, worker.name)[-1].text == "version 1: <b>first</b>"


def test_a_new_version_asks_about_checkpoints_that_do_not_fit(
    page: Any, url: str, worker: FakeWorker, bootstrap: str, tmp_path: Path
) -> None:
    """What happens to every flow is stated before; nothing is done before all is decided."""
    worker.deploy(1, prepare(written(tmp_path, project())).flows)
    page.goto(f"{url}#/pipelines/{worker.name}")
    page.locator("#facts .state").wait_for()
    page.get_by_role("button", name="Deploy a version").click()
    dialog = page.locator("dialog")
    dialog.get_by_label(ARCHIVE).set_input_files([zipped("any", key="page")])
    dialog.get_by_role("button", name=LOOK).click()
    dialog.get_by_text("clicks: keeps its checkpoint (it did not change)").wait_for()
    go = dialog.get_by_role("button", name="Deploy", exact=True)
    go.click()
    dialog.locator(".error", has_text="choose what happens to counts").wait_for()
    dialog.get_by_label("counts").select_option("reset")
    assert dialog.locator("#plan").count(), "the plan stays"
    go.click()
    page.get_by_text(f"{worker.name} version 2 is deployed").wait_for()
    found = definition(bootstrap, worker.name)
    assert found is not None
    assert (found.version, found.reset_flows, found.wanted) == (2, ["counts"], "RUNNING")


def test_what_cannot_be_deployed_is_told_in_the_form(
    page: Any, url: str, worker: FakeWorker, bootstrap: str
) -> None:
    """The form stays, so that it can be corrected. A change of a field needs a new plan."""
    worker.deploy()
    page.goto(f"{url}#/pipelines")
    page.locator("#deployments").get_by_text(worker.name).wait_for()
    page.get_by_role("button", name="Deploy a pipeline").click()
    dialog = page.locator("dialog")
    look = dialog.get_by_role("button", name=LOOK)

    def refused(text: str) -> None:
        look.click()
        dialog.locator(".error", has_text=text).wait_for()

    refused("choose the folder of a project, or an archive of it")
    archive = dialog.get_by_label(ARCHIVE)
    archive.set_input_files([{**zipped("x"), "buffer": b"no archive"}])
    refused("the archive cannot be unpacked")
    archive.set_input_files([{**zipped("x"), "buffer": packed({"../x": "x"})}])
    refused("a path outside its folder")
    archive.set_input_files([zipped(worker.name)])
    refused(f"{worker.name} is deployed already")
    dialog.get_by_label("Name").fill(f"{worker.name}-2")
    dialog.get_by_label("Schedule", exact=True).select_option("cron")
    dialog.get_by_label("Time of the schedule").fill("at noon")
    refused("'at noon' is not a cron schedule")
    dialog.get_by_label("Time of the schedule").fill("0 3 * * *")
    look.click()
    dialog.locator("#plan").wait_for()
    dialog.get_by_label("Name").fill(f"{worker.name}-3")
    dialog.locator("#plan").wait_for(state="detached")
    look.click()
    dialog.locator("#plan").wait_for()
    refusal = {"error": "this user may not change it: it needs Write on the topic x"}
    page.route("**/api/change/deploy?*", lambda route: route.fulfill(status=403, json=refusal))
    dialog.get_by_role("button", name="Deploy", exact=True).click()
    dialog.locator(".error", has_text=refusal["error"]).wait_for()
    assert definition(bootstrap, f"{worker.name}-3") is None


def test_a_folder_with_too_many_files_is_not_sent(page: Any, url: str, tmp_path: Path) -> None:
    """Nor an archive that is too large. The limits are those of the console."""
    limits = {"bytes_max": 1 << 20, "files_max": 2, "ignored": ["*.pyc"]}
    page.route("**/api/upload-limits", lambda route: route.fulfill(json=limits))
    page.goto(f"{url}#/pipelines")
    page.get_by_role("button", name="Deploy a pipeline").click()
    dialog = page.locator("dialog")
    look = dialog.get_by_role("button", name=LOOK)
    folder = written(tmp_path, {"a": "", "b": "", "c": "", "d.pyc": ""})
    dialog.get_by_label(FOLDER).set_input_files(str(folder))
    look.click()
    dialog.locator(".error", has_text="the folder has more than 2 files").wait_for()
    large = {**zipped("x"), "buffer": bytes((1 << 20) + 1)}
    dialog.get_by_label(ARCHIVE).set_input_files([large])
    look.click()
    dialog.locator(".error", has_text="choose a folder or an archive, not both").wait_for()
    dialog.get_by_role("button", name="Cancel").click()
    page.get_by_role("button", name="Deploy a pipeline").click()
    dialog.get_by_label(ARCHIVE).set_input_files([large])
    look.click()
    dialog.locator(".error", has_text="the archive is larger than 1 MiB").wait_for()


def test_a_deploy_that_is_canceled_is_not_carried_out(
    page: Any, url: str, worker: FakeWorker, bootstrap: str
) -> None:
    """Neither with the button nor with Escape: the request ends, and the page stays where it is."""

    def is_deploy(request: Any) -> bool:
        return "/api/change/deploy?" in request.url

    page.route("**/api/change/deploy?*", lambda route: None)  # It is neither sent nor answered.
    for close in ("Cancel", "Escape"):
        page.goto(f"{url}#/pipelines")
        page.get_by_role("button", name="Deploy a pipeline").click()
        dialog = page.locator("dialog")
        dialog.get_by_label(ARCHIVE).set_input_files([zipped(worker.name)])
        dialog.get_by_role("button", name=LOOK).click()
        dialog.locator("#plan").wait_for()
        with page.expect_request("**/api/change/deploy?*"):
            dialog.get_by_role("button", name="Deploy", exact=True).click()
        with page.expect_event("requestfailed", is_deploy) as ended:
            if close == "Escape":
                page.keyboard.press("Escape")
            else:
                dialog.get_by_role("button", name=close).click()
        dialog.wait_for(state="detached")
        assert "ABORTED" in ended.value.failure
        assert page.url.endswith("#/pipelines")
        assert not page.locator(".toast").count()
    assert definition(bootstrap, worker.name) is None


def test_files_that_changed_since_the_plan_are_not_deployed(
    page: Any, url: str, worker: FakeWorker, bootstrap: str
) -> None:
    """The form then shows again what would happen. The page sends what the plan was made for."""
    page.goto(f"{url}#/pipelines")
    page.get_by_role("button", name="Deploy a pipeline").click()
    dialog = page.locator("dialog")
    dialog.get_by_label(ARCHIVE).set_input_files([zipped(worker.name)])
    look = dialog.get_by_role("button", name=LOOK)
    look.click()
    dialog.locator("#plan").wait_for()
    changed = zipped(worker.name, key="page")["buffer"]
    page.route("**/api/change/deploy?*", lambda route: route.continue_(post_data=changed))
    dialog.get_by_role("button", name="Deploy", exact=True).click()
    dialog.locator(".error", has_text="the files have changed since the plan").wait_for()
    assert definition(bootstrap, worker.name) is None
    page.unroute("**/api/change/deploy?*")
    look.click()
    dialog.locator("#plan").wait_for()
    dialog.get_by_role("button", name="Deploy", exact=True).click()
    page.get_by_text(f"{worker.name} version 1 is deployed").wait_for()
