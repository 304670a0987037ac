"""Polls the cluster all the time, so that pages need not wait.

There are five loops, each with its own interval:

- brokers: every second. Each broker is asked directly, since the cluster considers a dead broker
  alive until its session ends.
- topics, end offsets and moves
- groups and their lag
- disks
- queues (`queues.py`)

The last four pause ten times as long as they took. So however large a cluster is, polling takes a
tenth of one connection's time. When a broker joins or leaves they run at once. While a broker is
missing or silent the pauses are shorter, since that is when the user watches.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from typing import Final

from penstock.client.admin.groups import GroupListing
from penstock.client.errors import ApiNotServed, BrokerError, ClientError
from penstock.console.link import Link, Reading
from penstock.console.picture import GroupLag, Picture
from penstock.topic_partition import TopicPartition
from penstock.wire.errors import ErrorCode

_REST_FACTOR: Final = 10
_DESCRIBED_MAX: Final = 500
"""For this many groups members and lag are polled; for further groups only names and states."""
_AT_ONCE: Final = 8
_DENIED: Final = frozenset(
    {
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.GROUP_AUTHORIZATION_FAILED,
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    }
)
_SHOWN_BY: Final = {
    "look": "brokers",
    "survey_topics": "topics",
    "survey_groups": "groups",
    "survey_disks": "sizes and disks",
    "survey_queues": "queues",
}
"""The loops, and what they show. If a user may not see it, the overview says so."""
_MOVES: Final = "moves of replicas"

_log = logging.getLogger(__name__)


def is_denied(error: ClientError) -> bool:
    """Returns whether the user has no right to do this."""
    return isinstance(error, BrokerError) and error.code in _DENIED


def _shown_by(survey: object) -> str:
    name = getattr(survey, "__name__", "")
    return _SHOWN_BY.get(name, name)


def is_share_group(listing: GroupListing) -> bool:
    """Returns whether it is a share group, which the page of queues shows."""
    return listing.kind.casefold() == "share"


class Watch:
    def __init__(self, link: Link, picture: Picture) -> None:
        self.picture = picture
        self._link = link
        self._clock = link.env.clock
        self._changed = asyncio.Event()
        self._hurry = asyncio.Event()
        self._ends_at: float | None = None
        self._sizes_at: float | None = None
        self._lags_at: float | None = None

    async def run(self) -> None:
        config = self._link.config
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._repeat(self.look, config.look_interval_s, 1))
            for survey in (self.survey_topics, self.survey_groups, self.survey_disks):
                tasks.create_task(self.repeat(survey))

    async def repeat(self, survey: Callable[[], Awaitable[None]]) -> None:
        """Runs a survey of the cluster again and again."""
        await self._repeat(survey, self._link.config.survey_interval_s, _REST_FACTOR)

    async def changed(self) -> None:
        """Waits until the picture has changed."""
        await self._changed.wait()

    def tell(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def _repeat(
        self, look: Callable[[], Awaitable[None]], interval_s: float, factor: int
    ) -> None:
        while True:
            began = self._clock.monotonic()
            rest_s = interval_s
            try:
                await look()
            except ClientError as error:
                # `look` records what cannot be reached. The other loops only try again.
                if is_denied(error):
                    self.picture.hidden.add(_SHOWN_BY[getattr(look, "__name__", "")])
                _log.debug(
                    "cannot refresh the view of the cluster (%s): %s; retrying",
                    _shown_by(look),
                    error,
                )
            else:
                self.picture.hidden.discard(_SHOWN_BY.get(getattr(look, "__name__", ""), ""))
                unwell = bool(self.picture.silent or self.picture.missing)
                took_s = self._clock.monotonic() - began
                rest_s = max(interval_s, took_s * (1 if unwell else factor))
            self.tell()
            if factor == 1:
                await self._clock.sleep(rest_s)
            else:
                with suppress(TimeoutError):
                    async with asyncio.timeout(rest_s):
                        await self._hurry.wait()

    async def look_again(self, *surveys: Callable[[], Awaitable[None]]) -> None:
        """Runs surveys after a change, so that the next page shows it.

        The change has been made: a survey that fails does not make the change fail, and the loops
        will repeat it.
        """
        for survey in surveys:
            try:
                await survey()
            except ClientError as error:
                _log.debug(
                    "a change was made, but the view of the cluster could not be refreshed (%s): "
                    "%s",
                    _shown_by(survey),
                    error,
                )

    async def look(self) -> None:
        now_ms = self._clock.wall_ms()
        try:
            info = await (await self._link.watching()).describe_cluster()
        except ClientError as error:
            self.picture.on_unreachable(now_ms, str(error))
            raise
        ids = [broker.id for broker in info.brokers]
        async with asyncio.TaskGroup() as tasks:
            asked = [tasks.create_task(self._link.answer_ms(each)) for each in ids]
        answers = {each: task.result() for each, task in zip(ids, asked, strict=True)}
        answer_ms = {each: taken for each, taken in answers.items() if taken is not None}
        silent = frozenset(answers.keys() - answer_ms.keys())
        before = self._standing()
        self.picture.on_brokers(now_ms, info, silent, answer_ms)
        if self._standing() != before:
            self._hurry.set()
            self._hurry = asyncio.Event()

    def _standing(self) -> tuple[object, ...]:
        """Returns the state whose change makes the surveys run at once."""
        picture = self.picture
        ids = () if picture.info is None else tuple(each.id for each in picture.info.brokers)
        return picture.unreachable, picture.silent, ids

    async def survey_topics(self) -> None:
        # After a failed survey the next one records no rates, and the charts show a gap.
        last_at, self._ends_at = self._ends_at, None
        admin = await self._link.watching()
        try:
            moving = await admin.list_partition_reassignments()
        except ApiNotServed:
            moving = {}
        except BrokerError as error:
            if not is_denied(error):
                raise
            moving = {}
            self.picture.hidden.add(_MOVES)
        else:
            self.picture.hidden.discard(_MOVES)
        topics = await admin.list_topics(internal=True)
        self.picture.moving = moving
        self.picture.on_topics(topics)
        await self._learn_minimums()
        up = {broker.id for broker in self.picture.info.brokers} if self.picture.info else set()
        answering = up - self.picture.silent
        asked = [
            topic_partition
            for topic_partition, part in self.picture.topic_partitions()
            if part.leader in answering
        ]
        found = await admin.list_offsets(dict.fromkeys(asked, "latest")) if asked else {}
        now = self._clock.monotonic()
        seconds = 0.0 if last_at is None else now - last_at
        self._ends_at = now
        ends = {
            topic_partition: end.offset for topic_partition, end in found.items() if end is not None
        }
        self.picture.on_ends(self._clock.wall_ms(), ends, seconds)

    async def _learn_minimums(self) -> None:
        """Reads min.insync.replicas of topics that lack replicas: others do not need it."""
        lacking = {topic.name for topic in self.picture.tally.unwell}
        admin = await self._link.watching()
        least: dict[str, int] = {}
        for topic in sorted(lacking)[:100]:
            known = self.picture.least_in_sync.get(topic)
            if known is None:
                try:
                    entry = (await admin.describe_configs(topic=topic)).get("min.insync.replicas")
                except BrokerError:
                    continue  # deleted meanwhile
                known = int(entry.value or 1) if entry and (entry.value or "").isdigit() else 1
            least[topic] = known
        self.picture.least_in_sync = least

    async def survey_disks(self) -> None:
        last_at, self._sizes_at = self._sizes_at, None
        admin = await self._link.watching()
        info = self.picture.info
        up = [] if info is None else [each.id for each in info.brokers]
        answering = [each for each in up if each not in self.picture.silent]
        if answering:
            self.picture.cordoned = await self._link.cordoned(answering)
            found = await admin.describe_log_dirs(answering)
            now = self._clock.monotonic()
            seconds = 0.0 if last_at is None else now - last_at
            self._sizes_at = now
            self.picture.on_log_dirs(self._clock.wall_ms(), found, seconds)

    async def survey_groups(self) -> None:
        last_at, self._lags_at = self._lags_at, None
        admin = await self._link.watching()
        listed = {
            group.group: group for group in await admin.list_groups() if not is_share_group(group)
        }
        known = self.picture.groups
        groups = {name: known.get(name) or GroupLag(listing) for name, listing in listed.items()}
        for name, group in groups.items():
            group.listing = listed[name]
        self.picture.groups = groups
        followed = sorted(groups)[:_DESCRIBED_MAX]
        gate = asyncio.Semaphore(_AT_ONCE)
        offsets: dict[str, dict[TopicPartition, int]] = {}

        async def follow(name: str) -> None:
            async with gate:
                try:
                    info = await admin.describe_group(name)
                    committed = await admin.group_offsets(name)
                except ClientError as error:
                    _log.debug("cannot read the lag of group %s: %s", name, error)
                    return
            groups[name].members = len(info.members)
            offsets[name] = {
                topic_partition: at.offset for topic_partition, at in committed.items()
            }

        async with asyncio.TaskGroup() as tasks:
            for name in followed:
                tasks.create_task(follow(name))
        starts = await self._starts(admin, offsets.values())
        found = {}
        for name, committed in sorted(offsets.items()):
            lags = {
                topic_partition: max(0, end - max(at, starts.get(topic_partition, 0)))
                for topic_partition, at in sorted(committed.items())
                if (end := self.picture.ends.get(topic_partition)) is not None
            }
            found[name] = lags, committed
        now = self._clock.monotonic()
        seconds = 0.0 if last_at is None else now - last_at
        self._lags_at = now
        self.picture.on_lags(self._clock.wall_ms(), seconds, found)

    async def _starts(
        self, admin: Reading, committed: Iterable[dict[TopicPartition, int]]
    ) -> dict[TopicPartition, int]:
        """Returns where the logs start in which some group is behind.

        Records that retention has deleted cannot be read any more, so they are not lag.
        """
        ends = self.picture.ends
        behind = {
            topic_partition
            for offsets in committed
            for topic_partition, at in offsets.items()
            if ends.get(topic_partition, 0) > at
        }
        if not behind:
            return {}
        found = await admin.list_offsets(dict.fromkeys(sorted(behind), "earliest"))
        return {
            topic_partition: start.offset
            for topic_partition, start in found.items()
            if start is not None
        }
