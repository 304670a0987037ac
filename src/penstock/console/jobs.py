"""Jobs: work that takes longer than a request. All pages show their progress and can stop them.

Every job is a task of one task group, which ends with the console.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final

from penstock.client.errors import ClientError
from penstock.console.errors import ConsoleError, NotFound

_KEPT: Final = 20
_log = logging.getLogger(__name__)


@dataclass(slots=True)
class Job:
    number: int
    title: str
    total: int = 0
    done: int = 0
    state: str = "running"
    """running, done, failed, stopped."""
    note: str = ""

    def advance(self, count: int) -> None:
        self.done += count

    def as_dict(self) -> dict[str, Any]:
        return {
            "number": self.number,
            "title": self.title,
            "total": self.total,
            "done": self.done,
            "state": self.state,
            "note": self.note,
        }


class Jobs:
    def __init__(self, on_change: Callable[[], None]) -> None:
        self._on_change = on_change
        self._jobs: dict[int, Job] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._group: asyncio.TaskGroup | None = None
        self._count = 0

    async def run(self) -> None:
        """Owns the tasks of all jobs. Ends only by cancellation."""
        async with asyncio.TaskGroup() as self._group:
            await asyncio.Event().wait()

    def listed(self) -> list[dict[str, Any]]:
        return [job.as_dict() for job in self._jobs.values()]

    def begin(self, title: str, work: Callable[[Job], Awaitable[str]]) -> Job:
        """Starts a job. `work` returns a sentence about its result."""
        assert self._group is not None, "run() must have started"
        self._count += 1
        job = self._jobs[self._count] = Job(self._count, title)
        for number in [each.number for each in self._jobs.values() if each.state != "running"]:
            if len(self._jobs) > _KEPT:
                del self._jobs[number]
        self._tasks[job.number] = self._group.create_task(self._work(job, work))
        self._on_change()
        return job

    async def _work(self, job: Job, work: Callable[[Job], Awaitable[str]]) -> None:
        try:
            job.note = await work(job)
            job.state = "done"
        except (ClientError, ConsoleError) as error:
            job.note, job.state = str(error), "failed"
        except asyncio.CancelledError:
            job.note, job.state = job.note or "cancelled before it finished", "stopped"
            raise
        except Exception:  # noqa: BLE001 -- must not end the other jobs
            _log.exception("job %s (%s) failed", job.number, job.title)
            job.note, job.state = "internal error of the console: see its log", "failed"
        finally:
            self._tasks.pop(job.number, None)
            self._on_change()

    async def all_done(self) -> None:
        """Waits until no job is running."""
        while self._tasks:
            await asyncio.wait([*self._tasks.values()])

    def stop(self, number: int) -> None:
        job = self._jobs.get(number)
        if job is None:
            raise NotFound(f"there is no job {number}: reload the page")
        if task := self._tasks.get(number):
            task.cancel()
