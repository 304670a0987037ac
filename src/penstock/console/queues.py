"""The pages of queues: share groups and their topics, jobs without taking them, and dead letters.

A plan of a redrive changes nothing, so a read-only console may make one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from penstock.client.errors import ClientError, Fenced, TopicNotFound, TransactionAborted
from penstock.client.queues.dead_letters import DeadLetters
from penstock.client.queues.queue_stats import peek
from penstock.client.redrive import (
    Redriven,
    fenced_text,
    redrive_group,
    redrive_transaction,
)
from penstock.console.errors import BadRequest, Conflict, NotAllowed, NotFound, NotReached
from penstock.console.jobs import Job, Jobs
from penstock.console.link import Link
from penstock.console.queue_table import (
    KnownGroup,
    QueueName,
    QueueTable,
    member_rows,
    partition_rows,
)
from penstock.console.shown import Format, show_record
from penstock.console.watch import Watch, is_denied, is_share_group

PAGE_MAX: Final = 500
PEEK_MAX: Final = 100
_GROUPS_MAX: Final = 200
"""So many share groups are polled."""
_AT_ONCE: Final = 4
_READ_S: Final = 15.0
"""A peek or a plan that takes longer is given up."""
_ERRORS_SHOWN: Final = 10
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Selection:
    """The dead letters that a redrive sends back, and where."""

    to: str = ""
    error: str = ""
    limit: int | None = None


class Queues:
    def __init__(self, link: Link, watch: Watch, jobs: Jobs) -> None:
        self._link = link
        self._watch = watch
        self._jobs = jobs
        self._clock = link.env.clock
        self._table = QueueTable()
        self._surveyed_at: float | None = None

    async def run(self) -> None:
        """Polls the queues until it is cancelled."""
        await self._watch.repeat(self.survey_queues)

    def exists(self, name: str) -> bool:
        topic, _, group = name.partition("/")
        return QueueName(topic, group) in self._table.queues

    # -- polling --------------------------------------------------------------------------------

    async def survey_queues(self) -> None:
        # After a failed survey the next one records no rates, and the charts show a gap.
        last_at, self._surveyed_at = self._surveyed_at, None
        admin = await self._link.watching()
        names = [each.group for each in await admin.list_groups() if is_share_group(each)]
        gate = asyncio.Semaphore(_AT_ONCE)
        found: dict[str, KnownGroup] = {}

        async def follow(name: str) -> None:
            async with gate:
                try:
                    found[name] = await self._group(name)
                except ClientError as error:
                    _log.debug("cannot read the queues of group %s: %s", name, error)

        async with asyncio.TaskGroup() as tasks:
            for name in names[:_GROUPS_MAX]:
                tasks.create_task(follow(name))
        before = self._table.replace(found, len(names[_GROUPS_MAX:]))
        now = self._clock.monotonic()
        seconds = 0.0 if last_at is None else now - last_at
        self._surveyed_at = now
        history = self._watch.picture.history
        self._table.record(history, self._clock.wall_ms(), seconds, before)

    async def _group(self, name: str) -> KnownGroup:
        queues = await self._link.group_queues(name)
        topic, letters = await self._letters(name)
        return KnownGroup(queues, topic, letters)

    async def _letters(self, group: str) -> tuple[str | None, DeadLetters | None]:
        """Returns the dead-letter topic and its letters; None for what the user may not see."""
        topic: str | None = None
        try:
            topic = await self._link.dead_letter_topic(group)
            return topic, await self._link.dead_letters(topic) if topic else None
        except TopicNotFound:
            return topic, None  # the broker creates it with the first letter
        except ClientError as error:
            if not is_denied(error):
                raise
            return topic, None

    # -- looking --------------------------------------------------------------------------------

    async def listed(self, search: str, offset: int, limit: int) -> dict[str, Any]:
        if not self._table.is_surveyed:
            await self.survey_queues()
        found = self._table.named(search)
        shown = found[offset : offset + min(limit, PAGE_MAX)]
        return {
            "now_ms": self._clock.wall_ms(),
            "total": len(found),
            "offset": offset,
            "unlisted": self._table.unlisted,
            "queues": [self._table.queues[name].as_row() for name in shown],
        }

    async def described(self, topic: str, group: str) -> dict[str, Any]:
        _check(topic, group)
        queues = self._table.queues
        if (known := queues.get(QueueName(topic, group))) is None:
            await self.survey_queues()
            if (known := self._table.queues.get(QueueName(topic, group))) is None:
                raise NotFound(
                    f"the share group {group} has not read {topic}, or you may not see it"
                )
        return {
            "now_ms": self._clock.wall_ms(),
            **known.as_row(),
            "coordinator": known.group.found.info.coordinator,
            "partitions": partition_rows(known.stats),
            "group_members": member_rows(known.group, topic),
        }

    async def jobs(self, topic: str, group: str, limit: int, how: Format) -> dict[str, Any]:
        """Returns the first jobs that are not done, read from the log: nobody takes them."""
        _check(topic, group)
        with _time_limit_named(f"reading {topic}"):
            async with asyncio.timeout(_READ_S):
                stats = await self._link.queue_stats(topic, group)
                found = await peek(stats, min(limit, PEEK_MAX), self._link.consumer())
        return {"depth": stats.depth, "jobs": [show_record(record, how) for record in found]}

    # -- dead letters ---------------------------------------------------------------------------

    async def plan_redrive(self, group: str, chosen: Selection) -> dict[str, Any]:
        """Returns what a redrive would send back, without sending it."""
        topic = await self._letters_topic(group, chosen)
        with _rights_named(topic), _time_limit_named(f"reading {topic}"):
            async with asyncio.timeout(_READ_S):
                found = await self._link.preview_redrive(
                    topic, to=chosen.to, error=chosen.error, limit=chosen.limit
                )
        return {"topic": topic, **_figures(found)}

    async def redrive(self, group: str, chosen: Selection) -> dict[str, Any]:
        """Begins a job that sends dead letters back to the queues that they came from."""
        topic = await self._letters_topic(group, chosen)
        work = self._link.redrive(
            f"redrive {topic}: {chosen}", topic, to=chosen.to, error=chosen.error,
            limit=chosen.limit,
        )  # fmt: skip

        async def run(job: Job) -> str:
            def on_progress(done: Redriven) -> None:
                job.total, job.done = done.total, done.read

            try:
                with _rights_named(topic):
                    done = await work.run(on_progress)
            except Fenced as error:
                raise Conflict(fenced_text(topic)) from error
            await self._watch.look_again(self.survey_queues)
            sent = ", ".join(f"{number:,} to {to}" for to, number in sorted(done.sent.items()))
            left = done.left + done.unknown + done.without_copy
            return f"sent {sent or 'nothing'}" + (f"; {left:,} left in {topic}" if left else "")

        return self._jobs.begin(f"redrive {topic}", run).as_dict()

    async def _letters_topic(self, group: str, chosen: Selection) -> str:
        topic = await self._link.dead_letter_topic(group)
        if not topic:
            raise NotFound(f"the share group {group} has no dead-letter topic")
        if chosen.to == topic:
            raise BadRequest("choose a topic other than the dead-letter topic itself")
        return topic


def _check(topic: str, group: str) -> None:
    if not topic or not group:
        raise BadRequest("name the topic and the share group")


def _figures(found: Redriven) -> dict[str, Any]:
    return {
        "total": found.total,
        "read": found.read,
        "sent": dict(sorted(found.sent.items())),
        "left": found.left,
        "unknown": found.unknown,
        "without_copy": found.without_copy,
        "errors": [list(each) for each in found.errors.most_common(_ERRORS_SHOWN)],
    }


@contextmanager
def _rights_named(topic: str) -> Iterator[None]:
    """Turns the refusal of a broker into an error that names the rights that are needed."""
    try:
        yield
    except ClientError as error:
        cause = error.__cause__ if isinstance(error, TransactionAborted) else error
        if not isinstance(cause, ClientError) or not is_denied(cause):
            raise
        raise NotAllowed(
            f"this user may not redrive {topic}: it needs Read and Write on the topic {topic}, "
            f"Read on the group {redrive_group(topic)}, Write on the transactional id "
            f"{redrive_transaction(topic)}, and Write on the topics that the jobs go to ({cause})"
        ) from error


@contextmanager
def _time_limit_named(doing: str) -> Iterator[None]:
    try:
        yield
    except TimeoutError as error:
        raise NotReached(
            f"{doing} took longer than {_READ_S:.0f} s: choose a smaller limit, or use penstock "
            "queue on the command line"
        ) from error
