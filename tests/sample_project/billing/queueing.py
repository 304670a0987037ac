"""Queues: jobs that are put, taken and settled, with exact types."""

from __future__ import annotations

from typing import Any, assert_type

from penstock import Job, Queue, aio, errors, serializers


def put_bytes(queue: Queue[bytes]) -> int:
    return queue.put(b"resize cat.png", key="cats", delay=5, ttl=60, priority=1, dedup="7").offset


def work(bootstrap: str) -> None:
    with Queue(bootstrap, "jobs") as queue:
        assert_type(queue, Queue[bytes])
        for job in queue:
            assert_type(job.value, bytes | None)
            try:
                job.done()
            except errors.LockLost:
                return


def work_on_text(bootstrap: str) -> int:
    with Queue(bootstrap, "jobs", serializer=serializers.string, prefetch=10) as queue:
        assert_type(queue, Queue[str])

        def handle(job: Job[str]) -> None:
            print(job.value, job.attempt)

        return queue.run(handle, workers=4).done


async def answer(bootstrap: str) -> Any:
    async with aio.Queue(bootstrap, "jobs", serializer=serializers.string) as queue:
        assert_type(queue, aio.Queue[str])
        job = await queue.take(timeout_s=1)
        assert_type(job, aio.Job[str] | None)
        if job is not None:
            await job.reply("done")
            await job.done()
        return await queue.ask("ready?", timeout_s=5)
