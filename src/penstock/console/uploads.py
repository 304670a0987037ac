"""Projects that people upload: received into a temporary folder, and checked by another process.

See `project_check`. The number of uploads at a time is limited for all users together, because each
may take 64 MiB for the archive and half a GiB unpacked. A user has one at a time, so that nobody
holds all of them.
"""

from __future__ import annotations

import asyncio
import json
import logging
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

from penstock.console import project_check
from penstock.console.errors import BadRequest, InternalError
from penstock.ports import Executor
from penstock.spark.deployments.catalog_view import ARCHIVE_BYTES_MAX
from penstock.spark.deployments.model import Schedule
from penstock.spark.deployments.project_files import PreparedFiles

AT_A_TIME_MAX: Final = 4
_RECEIVE_S: Final = 600.0
_IDLE_S: Final = 30.0
"""The longest pause between two parts."""
_CHECK_S: Final = 300.0
_PART_BYTES: Final = 1 << 20
TOO_LARGE: Final = (
    f"the archive is larger than {ARCHIVE_BYTES_MAX >> 20} MiB: list what is not needed in "
    ".penstockignore, or leave it out of the archive"
)
_TOLD: Final = "stderr"
_TOLD_BYTES: Final = 2_000
T = TypeVar("T")
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Upload:
    """An archive that a browser sends."""

    parts: AsyncIterator[bytes]
    gone: Callable[[], Coroutine[Any, Any, None]]
    """Returns when the browser does not wait for the answer any more. To be called after the last
    part."""


class CheckedProject:
    """A project that can be deployed."""

    def __init__(self, found: Mapping[str, Any], archive: bytes) -> None:
        given = found["schedule"]
        self.schedule = None if given is None else Schedule(**given)
        self.files = PreparedFiles(
            name=found["name"],
            kind=found["kind"],
            root=Path(),
            entry=found["entry"],
            bootstrap="",
            storage=found["storage"],
            requirements=found["requirements"],
            flows=found["flows"],
            unnamed=found["unnamed"],
            archive=archive,
        )


class Uploads:
    """The uploads of all users of a console."""

    def __init__(self, executor: Executor, idle_s: float = _IDLE_S) -> None:
        self._executor = executor
        self._idle_s = idle_s
        self._busy: set[str] = set()
        """The users whose projects are uploaded."""

    @asynccontextmanager
    async def checked(
        self, upload: Upload, user: str, script: str, schedule: str, when: str
    ) -> AsyncIterator[CheckedProject]:
        """Receives an archive and checks what is in it. Raises `BadRequest`. The user cannot upload
        another one before the caller has left the context."""
        asked = json.dumps({"script": script, "schedule": schedule, "when": when})
        with self._turn(user):
            yield await self._project(upload, asked)

    @contextmanager
    def _turn(self, user: str) -> Iterator[None]:
        if user in self._busy:
            raise BadRequest("a project is being uploaded already: wait until that has ended")
        if len(self._busy) >= AT_A_TIME_MAX:
            raise BadRequest("other projects are being uploaded: try again in a moment")
        self._busy.add(user)
        try:
            yield
        finally:
            self._busy.remove(user)

    async def _project(self, upload: Upload, asked: str) -> CheckedProject:
        async with self._folder() as folder:
            try:
                async with asyncio.timeout(_RECEIVE_S):
                    await self._receive(upload.parts, folder / project_check.UPLOAD)
            except TimeoutError:
                raise BadRequest(
                    f"the archive has not arrived within {_RECEIVE_S:.0f} s: try again, or deploy "
                    "with penstock pipeline deploy"
                ) from None
            found = await _unless_gone(upload, self._check(folder, asked))
            if "error" in found:
                raise BadRequest(str(found["error"]))
            archive = await self._executor.run((folder / project_check.ARCHIVE).read_bytes)
            return CheckedProject(found, archive)

    @asynccontextmanager
    async def _folder(self) -> AsyncIterator[Path]:
        """Makes a folder that only this user of the machine can read, and removes it."""
        # Not on a thread: a folder that is made after a cancellation would stay.
        made = tempfile.mkdtemp(prefix="penstock-upload-")
        try:
            yield Path(made)
        finally:
            await self._executor.run(lambda: _remove(made))

    async def _receive(self, parts: AsyncIterator[bytes], file: Path) -> None:
        """Writes on a thread, in large parts."""
        size = 0
        with file.open("wb") as written:
            waiting = bytearray()
            while part := await self._next(parts):
                size += len(part)
                if size > ARCHIVE_BYTES_MAX:
                    raise BadRequest(TOO_LARGE)
                waiting += part
                if len(waiting) >= _PART_BYTES:
                    await self._executor.run(partial(written.write, bytes(waiting)))
                    waiting.clear()
            await self._executor.run(partial(written.write, bytes(waiting)))
        if not size:
            raise BadRequest("choose the folder of a project, or an archive of it")

    async def _next(self, parts: AsyncIterator[bytes]) -> bytes:
        """Returns a part that is not empty; an empty one after the last."""
        try:
            async with asyncio.timeout(self._idle_s):
                async for part in parts:
                    if part:
                        return part
        except TimeoutError:
            raise BadRequest(
                f"nothing more of the archive has arrived for {self._idle_s:.0f} s: try again"
            ) from None
        return b""

    async def _check(self, folder: Path, asked: str) -> dict[str, Any]:
        in_time, found = True, None
        # Into a file whose size is limited: a project can make Python print much.
        with (folder / _TOLD).open("wb") as told:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", project_check.__name__, str(folder), asked),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=told,
            )
        try:
            async with asyncio.timeout(_CHECK_S):
                printed, _ = await process.communicate()
            found = json.loads(printed)
        except TimeoutError:
            in_time = False
        except ValueError:
            pass  # It ended before it could answer.
        finally:
            if process.returncode is None:
                with suppress(ProcessLookupError):
                    process.kill()
                await process.wait()
        if isinstance(found, dict):
            return found
        ended = process.returncode or 0
        last = await self._executor.run(partial(_end_of, folder / _TOLD))
        _log.warning("the check of an uploaded project ended with %s: %s", ended, last)
        if in_time and ended >= 0:
            raise InternalError(
                "internal error of the console while it checked the project: its log has the cause"
            )
        raise BadRequest(
            "the project takes too much time or memory to be checked: check it with penstock "
            "pipeline dry-run, and deploy with penstock pipeline deploy"
        )


async def _unless_gone(upload: Upload, work: Coroutine[Any, Any, T]) -> T:
    """Returns the result of the work. Cancels the work if the browser disconnects."""
    working, gone = asyncio.ensure_future(work), asyncio.ensure_future(upload.gone())
    try:
        await asyncio.wait({working, gone}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise BadRequest("the browser does not wait for the answer: nothing was done")
    finally:
        for task in (working, gone):
            task.cancel()
        await asyncio.gather(working, gone, return_exceptions=True)


def _remove(folder: str) -> None:
    with suppress(RecursionError):
        shutil.rmtree(folder, ignore_errors=True)
    if Path(folder).exists():
        _log.error("cannot remove %s, the folder of an upload: remove it by hand", folder)


def _end_of(file: Path) -> str:
    with file.open("rb") as opened:
        opened.seek(max(0, file.stat().st_size - _TOLD_BYTES))
        return opened.read(_TOLD_BYTES).decode(errors="replace").strip()
