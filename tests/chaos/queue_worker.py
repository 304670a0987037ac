"""Works on the jobs of a queue until SIGTERM, and writes down what it did.

With the arguments `hold COUNT` it takes up to so many jobs and settles none before SIGTERM.

Each event is a line of JSON, appended to a file by one write, so that SIGKILL loses none before:

    ["began", process id]             SIGTERM is handled from now on
    ["taken", partition, offset, when it was delivered]
    ["done", partition, offset, when the broker had answered]
    ["again", partition, offset]      the job was given back on purpose
    ["lost", partition, offset]       the lock is lost, or the outcome unknown
    ["fatal", reason]                 the queue has failed: the program ends

Times are of the machine's monotonic clock, which all processes share. The program also ends when
its standard input closes, that is, when the process that started it ends.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sys
import threading
import time

from penstock import aio
from penstock.errors import ClientError

WORKERS = 3
PREFETCH = 20
WORK_S = 0.02
AGAIN_ONE_IN = 30


class Worker:
    def __init__(self, bootstrap: str, topic: str, output: str, holds: int = 0) -> None:
        self._holds = holds
        self._queue = aio.Queue(bootstrap, topic, prefetch=holds or PREFETCH)
        self._file = os.open(output, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def _note(self, *event: object) -> None:
        os.write(self._file, (json.dumps(event) + "\n").encode())

    async def run(self) -> int:
        loop = asyncio.get_running_loop()
        stopping = asyncio.Event()
        loop.add_signal_handler(signal.SIGTERM, stopping.set)
        threading.Thread(target=self._watch, args=(loop, stopping), daemon=True).start()
        failure: BaseException | None = None
        try:
            async with self._queue as queue, asyncio.TaskGroup() as tasks:
                self._note("began", os.getpid())
                work = self._hold if self._holds else self._work
                workers = [tasks.create_task(work(queue)) for _ in range(WORKERS)]
                await stopping.wait()
                queue.stop_taking()
                await asyncio.wait(workers)
        except* ClientError as group:
            failure = group.exceptions[0]
        if failure is not None:
            self._note("fatal", repr(failure))
        return 0 if failure is None else 1

    @staticmethod
    def _watch(loop: asyncio.AbstractEventLoop, stopping: asyncio.Event) -> None:
        # Not `sys.stdin`: a thread that holds its lock would abort the end of the interpreter.
        while os.read(0, 1024):
            pass
        loop.call_soon_threadsafe(stopping.set)

    async def _work(self, queue: aio.Queue[bytes]) -> None:
        async for job in queue:
            where = job.partition, job.offset
            self._note("taken", *where, job._lease.acquired_at)
            await asyncio.sleep(random.uniform(0, 2 * WORK_S))
            if random.randrange(AGAIN_ONE_IN) == 0:
                await self._give_back(job)
            else:
                await self._finish(job)

    async def _hold(self, queue: aio.Queue[bytes]) -> None:
        held = []
        async for job in queue:
            self._note("taken", job.partition, job.offset, job._lease.acquired_at)
            held.append(job)
        for job in held:
            await self._finish(job)

    async def _give_back(self, job: aio.Job[bytes]) -> None:
        try:
            await job.retry()
        except ClientError:
            self._note("lost", job.partition, job.offset)
        else:
            self._note("again", job.partition, job.offset)

    async def _finish(self, job: aio.Job[bytes]) -> None:
        try:
            await job.done()
        except ClientError:
            self._note("lost", job.partition, job.offset)
        else:
            self._note("done", job.partition, job.offset, time.monotonic())


def main() -> int:
    bootstrap, topic, output, *how = sys.argv[1:]
    holds = int(how[1]) if how else 0
    return asyncio.run(Worker(bootstrap, topic, output, holds).run())


if __name__ == "__main__":
    sys.exit(main())
