"""Tests that a project that is uploaded to the console is planned and deployed, over HTTP."""

from __future__ import annotations

import asyncio
import http.client
from collections.abc import Iterator, Mapping
from pathlib import Path
from urllib.parse import urlsplit

import pytest

pytest.importorskip("yaml", reason='pipelines need PySpark: pip install "penstock[spark]"')

from console.fake_worker import definition, history
from console.projects import packed, project
from console.running import Answer, Browserless, eventually, running_console
from penstock.spark.deployments import archive
from penstock.spark.deployments.catalog import Catalog
from penstock.spark.deployments.catalog_view import ARCHIVE_BYTES_MAX
from penstock.testing.broker import Broker
from penstock.testing.slowness import patient

PLAN, DEPLOY = "/api/read/deploy", "/api/change/deploy"


@pytest.fixture(scope="module")
def bootstrap() -> Iterator[str]:
    """A cluster without deployed pipelines, and so without their topics."""
    with Broker() as running:
        yield running.bootstrap


@pytest.fixture(scope="module")
def visitor(bootstrap: str) -> Iterator[Browserless]:
    with running_console(bootstrap) as url:
        found = Browserless(url)
        assert found.log_in().status == 200
        yield found


def deployed(visitor: Browserless, name: str, files: Mapping[str, str]) -> None:
    """Deploys the first version, and waits until the console has read it."""
    answer = visitor.upload(DEPLOY, packed(files), {"new": "true", "name": name})
    assert answer.status == 200, answer.body
    eventually(lambda: visitor.get(f"/api/deployments/{name}").status == 200, 120)


def with_spec(before: str, after: str) -> dict[str, str]:
    """A project whose project file was changed."""
    files = project()
    spec = files["spark-pipeline.yml"]
    assert before in spec
    return {**files, "spark-pipeline.yml": spec.replace(before, after)}


def test_a_project_is_planned_and_then_deployed(
    visitor: Browserless, bootstrap: str, tmp_path: Path
) -> None:
    """The plan changes nothing, not even the topics. What is deployed are the files of the folder,
    without what is never deployed, and as the command line would pack them."""
    files = project("first")
    more = {".git/config": "x", "__pycache__/a.pyc": "x"}
    asked = {"new": "true", "schedule": "every", "when": "10m", "note": "by hand"}
    body = packed({**files, **more}, "some folder/")
    plan = visitor.upload(PLAN, body, asked).json
    assert (plan["name"], plan["version"], plan["open"]) == ("first", 0, [])
    assert [line.partition(";")[0] for line in plan["flows"]] == ["clicks: new", "counts: new"]
    topics = visitor.get("/api/topics?internal=true").json["topics"]
    assert not [each["name"] for each in topics if "pipeline" in each["name"]]
    done = visitor.upload(DEPLOY, body, {**asked, "stopped": "true", "expected": 0})
    assert done.json == {"name": "first", "version": 1, "workers": 0}
    found = definition(bootstrap, "first")
    assert found is not None
    assert (found.version, found.wanted, found.schedule.every_s) == (1, "STOPPED", 600.0)
    assert [event.text for event in history(bootstrap, "first")] == ["version 1: by hand"]
    for path, text in files.items():
        file = tmp_path / path
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)
    assert asyncio.run(_archive(bootstrap, "first")) == archive.pack(tmp_path)


async def _archive(bootstrap: str, name: str) -> bytes:
    async with Catalog(bootstrap) as catalog:
        await catalog.caught_up()
        return await catalog.archive(catalog.versions[name, 1])


def test_a_new_version_says_what_happens_to_each_checkpoint(
    visitor: Browserless, bootstrap: str
) -> None:
    """Nothing is deployed before there is a decision about each flow that does not fit, and other
    settings stay as before."""
    deployed(visitor, "again", project("again"))
    body, asked = packed(project("again", key="page")), {"name": "again"}
    plan = visitor.upload(PLAN, body, asked).json
    assert plan["version"] == 1
    assert plan["flows"] == ["clicks: keeps its checkpoint (it did not change)"]
    assert [(each["flow"], each["outcome"]) for each in plan["open"]] == [("counts", "not kept")]
    refused = visitor.upload(DEPLOY, body, {**asked, "expected": 1})
    assert refused.status == 400 and "nothing was changed" in refused.error
    found = definition(bootstrap, "again")
    assert found is not None and found.version == 1
    done = visitor.upload(DEPLOY, body, {**asked, "expected": 1, "reset": ["counts"]})
    assert done.json["version"] == 2
    found = definition(bootstrap, "again")
    assert found is not None
    assert (found.version, found.reset_flows, found.schedule.continuous) == (2, ["counts"], True)
    # The first version again: counts was to begin again, and the user keeps its checkpoint.
    kept = {**asked, "expected": 2, "keep": ["counts"]}
    assert visitor.upload(DEPLOY, packed(project("again")), kept).json["version"] == 3
    found = definition(bootstrap, "again")
    assert found is not None and (found.version, found.reset_flows) == (3, [])


def test_a_plan_for_another_version_is_not_carried_out(
    visitor: Browserless, bootstrap: str
) -> None:
    deployed(visitor, "raced", project("raced"))
    late = visitor.upload(DEPLOY, packed(project("raced")), {"name": "raced", "expected": 7})
    assert late.status == 409 and "someone else changed raced" in late.error
    found = definition(bootstrap, "raced")
    assert found is not None and found.version == 1


def test_a_name_is_new_or_known(visitor: Browserless) -> None:
    """A new deployment never replaces another one, and a version needs its pipeline."""
    deployed(visitor, "taken", project("taken"))
    for path in (PLAN, DEPLOY):
        taken = visitor.upload(path, packed(project("taken")), {"new": "true"})
        assert taken.status == 400 and "taken is deployed already" in taken.error
        gone = visitor.upload(path, packed(project("none")), {"name": "not-there"})
        assert gone.status == 404 and "no deployed pipeline not-there" in gone.error


def test_a_script_is_deployed_with_its_folder(visitor: Browserless, bootstrap: str) -> None:
    files = {"job.py": "query = 1\n", "data.txt": "x"}
    asked = {"new": "true", "name": "script", "script": "job.py"}
    assert visitor.upload(DEPLOY, packed(files), asked).status == 200
    found = definition(bootstrap, "script")
    assert found is not None and found.version == 1
    for script, text in (("../job.py", "not the name"), ("x.py", "no x.py"), ("data.txt", "not")):
        wrong = visitor.upload(PLAN, packed(files), {**asked, "name": "s", "script": script})
        assert wrong.status == 400 and text in wrong.error


@pytest.mark.parametrize(
    ("body", "asked", "text"),
    [
        (b"no archive", {}, "cannot be unpacked: File is not a zip file"),
        (b"", {}, "choose the folder"),
        (packed({"../x": "x"}), {}, "a path outside its folder"),
        (packed({"x": "x"}), {}, "there is no spark-pipeline.yml in the outermost folder"),
        (packed({"a/spark-pipeline.yml": "", "b": ""}), {}, "there is no spark-pipeline.yml"),
        (packed({"spark-pipeline.yml": "libraries: []"}, "a/"), {}, "yml has no name"),
        (packed({"spark-pipeline.yml": "["}), {}, "spark-pipeline.yml is not YAML"),
        (packed({"spark-pipeline.yml": "[" * 100_000}), {}, "too deeply nested"),
        (
            packed({**project(), "transformations/clicks.py": "def"}),
            {},
            "transformations/clicks.py, line 1: invalid syntax",
        ),
        (
            packed({**project(), ".penstockignore": b"\xff"}),
            {},
            ".penstockignore is not valid UTF-8 text",
        ),
        (packed({**project(), ".penstockignore": "[z-a]"}), {}, "the pattern '[z-a]': bad"),
        (packed(with_spec("**", "b**x")), {}, "libraries"),
        (packed(with_spec("transformations/**", ".")), {}, "libraries"),
        (packed(with_spec("file:///tmp/unused", "file://[x")), {}, "neither a folder nor a URL"),
        (packed(with_spec("file:///tmp/unused", "s3://[x")), {}, "neither a folder nor a URL"),
        (packed(with_spec("file:///tmp/unused", '"a\\0b"')), {}, "neither a folder nor a URL"),
        (packed(project("No Name")), {}, "cannot be the name of a deployment"),
        (packed(project()), {"name": "../x"}, "cannot be the name of a deployment"),
        (packed(project()), {"schedule": "soon"}, "schedule must be one of continuous"),
        (packed(project()), {"schedule": "every"}, "say when rounds begin"),
        (packed(project()), {"schedule": "every", "when": "soon"}, "every: 'soon'"),
        (packed(project()), {"schedule": "cron", "when": "noon"}, "not a cron schedule"),
        (packed(project()), {"expected": "x"}, "expected must be a whole number"),
        (packed(project()), {"note": "x" * 1_001}, "more than 1,000 characters"),
    ],
)
def test_what_cannot_be_deployed_is_refused(
    visitor: Browserless, body: bytes, asked: dict[str, str], text: str
) -> None:
    """With one line that says what is wrong, without the paths of the console's machine."""
    answer = visitor.upload(PLAN, body, {"new": "true", **asked})
    assert answer.status == 400, answer.body
    assert text in answer.error
    assert "penstock-upload" not in answer.error


def test_an_archive_that_is_too_large_is_refused_before_it_is_sent(visitor: Browserless) -> None:
    address = urlsplit(visitor.url)
    connection = http.client.HTTPConnection(
        address.hostname or "", address.port, timeout=patient(120)
    )
    headers = {
        "content-type": "application/zip",
        "content-length": str(ARCHIVE_BYTES_MAX + 1),
        "cookie": visitor.cookie,
        "x-csrf-token": visitor.csrf,
    }
    connection.request("POST", PLAN, headers=headers)
    response = connection.getresponse()
    told = response.read()
    connection.close()
    assert response.status == 400 and b"larger than 64 MiB" in told


def refusals(visitor: Browserless, path: str) -> Iterator[Answer]:
    body = packed(project("guarded"))
    for headers in (
        {"x-csrf-token": ""},
        {"cookie": "none=1"},
        {"origin": "https://evil.example"},
        {"sec-fetch-site": "cross-site"},
        {"content-type": "text/plain"},
        {"content-type": "multipart/form-data; boundary=x"},
        {"content-type": "application/x-www-form-urlencoded"},
    ):
        sent = {"content-type": "application/zip", **headers}
        yield visitor.send("POST", f"{path}?new=true", body, sent)


def test_another_site_cannot_deploy(visitor: Browserless, bootstrap: str) -> None:
    """Neither with the cookie of the user, nor with any form."""
    for path in (PLAN, DEPLOY):
        assert [each.status for each in refusals(visitor, path)] == [
            403, 401, 403, 403, 400, 400, 400,
        ]  # fmt: skip
    assert definition(bootstrap, "guarded") is None


def test_a_read_only_console_plans_and_does_not_deploy(bootstrap: str) -> None:
    with running_console(bootstrap, "--read-only") as url:
        visitor = Browserless(url)
        assert visitor.log_in().status == 200
        body, asked = packed(project("looked-at")), {"new": "true"}
        assert visitor.upload(PLAN, body, asked).json["version"] == 0
        refused = visitor.upload(DEPLOY, body, asked)
        assert refused.status == 403 and "read-only" in refused.error
    assert definition(bootstrap, "looked-at") is None


def test_a_plan_for_other_files_is_not_carried_out(visitor: Browserless, bootstrap: str) -> None:
    asked = {"new": "true"}
    plan = visitor.upload(PLAN, packed(project("bound")), asked).json
    asked["files"] = plan["files"]
    late = visitor.upload(DEPLOY, packed(project("bound", key="page")), asked)
    assert late.status == 409 and "the files have changed since the plan" in late.error
    assert definition(bootstrap, "bound") is None
    assert visitor.upload(DEPLOY, packed(project("bound"), "elsewhere/"), asked).status == 200
