"""Tests that a project that is uploaded to the console is planned and deployed, over HTTP."""

from __future__ import annotations

import asyncio
import http.client
import subprocess
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from pathlib import Path
from urllib.parse import urlsplit

import pytest

pytest.importorskip("yaml", reason='pipelines need PySpark: pip install "penstock[spark]"')

from console.fake_worker import definition, history
from console.projects import packed, project
from console.running import Answer, Browserless, eventually, running_console
from penstock.client.environment import default_environment
from penstock.console import uploads
from penstock.console.config import ConsoleConfig
from penstock.console.deploying import Wish
from penstock.console.errors import BadRequest, InternalError, NotLoggedIn, ReadOnly
from penstock.console.uploads import AT_A_TIME_MAX, CheckedProject, Upload, Uploads
from penstock.console.workspace import Workspace
from penstock.runtime import Threads
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


async def _parts(*parts: bytes, then: asyncio.Event | None = None) -> AsyncIterator[bytes]:
    for part in parts:
        yield part
    if then is not None:
        await then.wait()


async def stays() -> None:
    """The browser waits for its answer."""
    await asyncio.Event().wait()


def sent(*parts: bytes, then: asyncio.Event | None = None) -> Upload:
    return Upload(_parts(*parts, then=then), stays)


async def checked(desk: Uploads, upload: Upload, user: str = "ann") -> CheckedProject:
    async with desk.checked(upload, user, "", "", "") as project:
        return project


def check(desk: Uploads, upload: Upload, user: str = "ann") -> asyncio.Task[CheckedProject]:
    return asyncio.create_task(checked(desk, upload, user))


@pytest.fixture
def threads() -> Iterator[Threads]:
    made = Threads(1)
    yield made
    made.close()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where uploads have their folders."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


def test_an_archive_without_a_stated_size_is_cut_off(threads: Threads, folder: Path) -> None:
    """And nothing of it is left on the disk."""

    async def main() -> None:
        parts = [bytes(1 << 20)] * ((ARCHIVE_BYTES_MAX >> 20) + 1)
        with pytest.raises(BadRequest, match="larger than 64 MiB"):
            await checked(Uploads(threads), sent(*parts))

    asyncio.run(main())
    assert not list(folder.iterdir())


def test_folders_that_are_too_deep_leave_nothing(threads: Threads, folder: Path) -> None:
    async def main() -> None:
        archive = packed({"x/" * 2_000 + "a": ""})
        with pytest.raises(BadRequest, match="in more than 49 folders"):
            await checked(Uploads(threads), sent(archive))

    asyncio.run(main())
    assert not list(folder.iterdir())


def test_a_folder_that_cannot_be_removed_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Before Python 3.13, folders that are too deep for its recursion cannot."""
    folder = at = tmp_path / "upload"
    at.mkdir()
    for _ in range(1_500):
        at /= "x"
        at.mkdir()
    try:
        uploads._remove(str(folder))
        assert not folder.exists() or "remove it by hand" in caplog.text
    finally:
        subprocess.run(["rm", "-rf", str(folder)], check=True)


def found_by_check(threads: Threads, folder: Path, asked: str) -> dict[str, object]:
    return asyncio.run(Uploads(threads)._check(folder, asked))


def test_a_fault_of_the_check_is_told(
    threads: Threads, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It is not blamed on the project. The log of the console has the cause."""
    with pytest.raises(InternalError, match="its log has the cause"):
        found_by_check(threads, tmp_path, "no JSON")
    assert "the check of an uploaded project ended with 1: Traceback" in caplog.text


def test_a_check_that_takes_too_long_is_told(
    threads: Threads, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uploads, "_CHECK_S", 0.0)
    with pytest.raises(BadRequest, match="too much time or memory to be checked"):
        found_by_check(threads, tmp_path, "{}")


def test_a_check_that_is_killed_is_told(
    threads: Threads, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when it reaches its limit of processor time."""
    killed = tmp_path / "killed"
    killed.write_text("#!/bin/sh\nkill -9 $$\n")
    killed.chmod(0o755)
    monkeypatch.setattr("sys.executable", str(killed))
    with pytest.raises(BadRequest, match="too much time or memory to be checked"):
        found_by_check(threads, tmp_path, "{}")


def test_errors_of_the_disk_are_told(threads: Threads, tmp_path: Path) -> None:
    """The folder of the project is there already."""
    (tmp_path / "upload.zip").write_bytes(packed(project()))
    (tmp_path / "project").mkdir()
    asked = '{"script": "", "schedule": "", "when": ""}'
    found = found_by_check(threads, tmp_path, asked)
    told = "the console cannot read or write the files of the project: File exists"
    assert found == {"error": told}


def test_what_a_check_prints_is_limited(threads: Threads, tmp_path: Path) -> None:
    """Python warns of each doubtful line. The limit of files also holds for what is printed, and is
    large enough for the archive."""
    code = project()["transformations/clicks.py"] + "0 is 0\n" * 1_000
    (tmp_path / "upload.zip").write_bytes(packed({**project(), "transformations/clicks.py": code}))
    asked = '{"script": "", "schedule": "", "when": ""}'
    assert found_by_check(threads, tmp_path, asked)["name"] == "clicks"
    assert (tmp_path / "archive").stat().st_size
    assert (tmp_path / "stderr").read_bytes() == b""


def test_only_the_end_of_what_a_check_prints_is_read(tmp_path: Path) -> None:
    (tmp_path / "stderr").write_bytes(b"x" * 1_000_000 + b"\xff the cause\n")
    last = uploads._end_of(tmp_path / "stderr")
    assert last.endswith("\N{REPLACEMENT CHARACTER} the cause") and len(last) < 2_001


def test_few_uploads_at_a_time(threads: Threads) -> None:
    """A further one is refused, and is possible when another has ended."""

    async def main() -> None:
        desk, end = Uploads(threads), asyncio.Event()
        users = [f"user {number}" for number in range(AT_A_TIME_MAX)]
        open_uploads = [check(desk, sent(b"x", then=end), user) for user in users]
        await asyncio.sleep(0)
        with pytest.raises(BadRequest, match="other projects are being uploaded"):
            await checked(desk, sent(b"x"))
        for each in open_uploads:
            each.cancel()
        await asyncio.gather(*open_uploads, return_exceptions=True)
        with pytest.raises(BadRequest, match="choose the folder"):
            await checked(desk, sent())

    asyncio.run(main())


def test_a_user_has_one_upload_at_a_time(threads: Threads) -> None:
    """Until the deploy has ended, and not only the upload. Other users are not affected."""

    async def main() -> None:
        desk = Uploads(threads)
        async with desk.checked(sent(packed(project())), "ann", "", "", ""):
            with pytest.raises(BadRequest, match="a project is being uploaded already"):
                await checked(desk, sent(b"x"))
            with pytest.raises(BadRequest, match="choose the folder"):
                await checked(desk, sent(), "bob")
        with pytest.raises(BadRequest, match="choose the folder"):
            await checked(desk, sent())

    asyncio.run(main())


def test_an_upload_that_pauses_is_ended(threads: Threads, folder: Path) -> None:
    async def main() -> None:
        desk = Uploads(threads, idle_s=0.01)
        for upload in (sent(then=asyncio.Event()), sent(b"x", b"", then=asyncio.Event())):
            with pytest.raises(BadRequest, match="nothing more of the archive has arrived"):
                await checked(desk, upload)

    asyncio.run(main())
    assert not list(folder.iterdir())


def test_a_check_ends_when_the_browser_goes_away(threads: Threads, folder: Path) -> None:
    """As when the user cancels: nothing is deployed, and the next upload need not wait."""

    async def gone() -> None: ...

    async def main() -> None:
        desk = Uploads(threads)
        with pytest.raises(BadRequest, match="nothing was done"):
            await checked(desk, Upload(_parts(packed(project())), gone))
        with pytest.raises(BadRequest, match="choose the folder"):
            await checked(desk, sent())

    asyncio.run(main())
    assert not list(folder.iterdir())


class Never:
    """The parts of an upload that nobody may read."""

    def __aiter__(self) -> Never:
        return self

    async def __anext__(self) -> bytes:
        raise AssertionError("the upload is read")


def with_workspace(
    threads: Threads,
    run: Callable[[Workspace], Coroutine[None, None, None]],
    *,
    read_only: bool = False,
) -> None:
    """Runs with the workspace of a user whose cluster does not answer."""

    async def main() -> None:
        settings = ConsoleConfig(bootstrap="localhost:1", read_only=read_only)
        env = default_environment()
        await run(Workspace(settings, env, threads, Uploads(threads), {}, "ann"))

    asyncio.run(main())


WISH = Wish(name="", is_new=True, script="", schedule="", when="")


def test_a_read_only_console_refuses_a_deploy_before_the_upload(threads: Threads) -> None:
    async def run(space: Workspace) -> None:
        with pytest.raises(ReadOnly):
            await space.deploying.deploy(WISH, Upload(Never(), stays))

    with_workspace(threads, run, read_only=True)


def test_nothing_is_deployed_after_the_user_has_signed_out(threads: Threads) -> None:
    """Which may be while the project is checked."""

    async def run(space: Workspace) -> None:
        async def parts() -> AsyncIterator[bytes]:
            yield packed(project())
            space.close()

        with pytest.raises(NotLoggedIn, match="nothing was deployed"):
            await space.deploying.deploy(WISH, Upload(parts(), stays))

    with_workspace(threads, run)
