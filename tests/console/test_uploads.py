"""Tests how the console receives and checks uploads. See `test_deploying` for HTTP."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from pathlib import Path

import pytest

pytest.importorskip("yaml", reason='pipelines need PySpark: pip install "penstock[spark]"')

from console.projects import packed, project
from penstock.client.environment import default_environment
from penstock.console import uploads
from penstock.console.config import ConsoleConfig
from penstock.console.deploying import Wish
from penstock.console.errors import BadRequest, InternalError, NotLoggedIn, ReadOnly
from penstock.console.uploads import AT_A_TIME_MAX, CheckedProject, Upload, Uploads
from penstock.console.workspace import Workspace
from penstock.runtime import Threads
from penstock.spark.deployments.catalog_view import ARCHIVE_BYTES_MAX


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
