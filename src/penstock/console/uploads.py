"""Projects that people upload: received into a temporary folder, and checked by another process.

See `project_check`. The number of uploads at a time is limited for all users together, because each
may take 64 MiB for the archive and half a GiB unpacked.
"""

from __future__ import annotations

import asyncio
import json
import logging
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

from penstock.console import project_check
from penstock.console.errors import BadRequest
from penstock.ports import Executor
from penstock.spark.deployments.catalog_view import ARCHIVE_BYTES_MAX
from penstock.spark.deployments.model import Schedule
from penstock.spark.deployments.project_files import PreparedFiles

AT_A_TIME_MAX: Final = 4
_RECEIVE_S: Final = 600.0
_CHECK_S: Final = 300.0
_PART_BYTES: Final = 1 << 20
TOO_LARGE: Final = (
    f"the archive is larger than {ARCHIVE_BYTES_MAX >> 20} MiB: list what is not needed in "
    ".penstockignore, or leave it out of the archive"
)
_log = logging.getLogger(__name__)


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
    """Of all users of a console."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._busy = 0

    async def checked(
        self, parts: AsyncIterator[bytes], script: str, schedule: str, when: str
    ) -> CheckedProject:
        """Receives an archive and checks what is in it. Raises `BadRequest`."""
        async with self._folder() as folder:
            try:
                async with asyncio.timeout(_RECEIVE_S):
                    await self._receive(parts, folder / project_check.UPLOAD)
            except TimeoutError:
                raise BadRequest(
                    f"the archive has not arrived within {_RECEIVE_S:.0f} s: try again, or deploy "
                    "with penstock pipeline deploy"
                ) from None
            asked = {"script": script, "schedule": schedule, "when": when}
            found = await _check(folder, json.dumps(asked))
            if "error" in found:
                raise BadRequest(str(found["error"]))
            archive = await self._executor.run((folder / project_check.ARCHIVE).read_bytes)
            return CheckedProject(found, archive)

    @asynccontextmanager
    async def _folder(self) -> AsyncIterator[Path]:
        """Makes a folder that only this user of the machine can read, and removes it."""
        if self._busy >= AT_A_TIME_MAX:
            raise BadRequest("other projects are being uploaded: try again in a moment")
        self._busy += 1
        try:
            # Not on a thread: a folder that is made after a cancellation would stay.
            made = tempfile.mkdtemp(prefix="penstock-upload-")
            try:
                yield Path(made)
            finally:
                await self._executor.run(lambda: shutil.rmtree(made, ignore_errors=True))
        finally:
            self._busy -= 1

    async def _receive(self, parts: AsyncIterator[bytes], file: Path) -> None:
        """Writes on a thread, in large parts."""
        size = 0
        with file.open("wb") as written:
            waiting = bytearray()
            async for part in parts:
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


async def _check(folder: Path, asked: str) -> dict[str, Any]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", project_check.__name__, str(folder), asked),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    told, found = b"", None
    try:
        async with asyncio.timeout(_CHECK_S):
            printed, told = await process.communicate()
        found = json.loads(printed)
    except (TimeoutError, ValueError):
        pass  # It reached a limit, or the project has found a fault of ours.
    finally:
        if process.returncode is None:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()
    if not isinstance(found, dict):
        last = told.decode(errors="replace").strip()[-2_000:]
        _log.warning("the check of an uploaded project ended with %s: %s", process.returncode, last)
        raise BadRequest(
            "the project takes too much time or memory to be checked: check it with penstock "
            "pipeline dry-run, and deploy with penstock pipeline deploy"
        )
    return found
