"""Changes that operators make to topics under traffic: other settings, and a topic created again.

A change is noted in `shared.losses_max` before it is requested, because from then on the weaker
promise may apply. It is never raised again: records that were acknowledged under the weaker promise
keep it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from random import Random  # noqa: TID251 - only for the type: instances are seeded
from typing import Any, Final

from penstock.aio import Admin, Consumer, Producer
from penstock.client.errors import BrokerError, ClientError, TopicNotFound
from penstock.sim.actors.compacted_table import POLICIES
from penstock.sim.actors.readers import BytesConsumer
from penstock.sim.actors.shared_state import Actor
from penstock.sim.history import COPIES, INFO, OK, TABLE, Deleted, Probe
from penstock.topic_partition import TopicPartition

ALTER: Final = "alter a topic"
"""The name of the request that `draw_change` makes."""
REBORN: Final = "reborn"
_RECORDS: Final = 4
_POLLS_MAX: Final = 20
_LOOKS_MAX: Final = 5
_UNHEARD_S: Final = 2.0


def draw_change(
    actor: Actor, draws: Random, wounded: int
) -> Callable[[Admin], Awaitable[None]] | None:
    """Returns a change of some topic's settings, or None if the cluster cannot tolerate it now."""
    shared = actor.shared
    if shared.scenario.tables and draws.random() < 0.4:
        return _policy_change(actor, draws.choice(POLICIES))
    topic = draws.choice([each for each in shared.scenario.topics if each.name != COPIES])
    durability, least = shared.settings.get(topic.name, (topic.durability, topic.min_insync))
    if draws.random() < 0.5:
        durability = "fsync" if durability == "replicated" else "replicated"
    else:
        least = draws.randint(1, topic.replication_factor)
    if durability == "replicated":
        # With one in-sync replica a record may be on a single disk, and not synced.
        losses_max = min(shared.losses_max, least - 1)
        if wounded > losses_max:
            return None
        shared.losses_max = losses_max
    shared.settings[topic.name] = (durability, least)

    async def alter(admin: Admin) -> None:
        values = {"durability": durability, "min.insync.replicas": str(least)}
        await admin.alter_configs(topic=topic.name, set_values=values)
        shared.count("topics_altered")

    return alter


def _policy_change(actor: Actor, policy: str) -> Callable[[Admin], Awaitable[None]]:
    async def alter(admin: Admin) -> None:
        await admin.alter_configs(topic=TABLE, set_values={"cleanup.policy": policy})
        actor.shared.count("policies_altered")

    return alter


class TopicRecreation:
    """Writes to a topic, deletes it, and creates it again under the same name. No record of the old
    topic may be there, and every record acknowledged since must be there."""

    def __init__(self, actor: Actor, draws: Random, name: str = "") -> None:
        self._actor = actor
        self._draws = draws
        self._name = name or f"{REBORN}{draws.randint(1, 2)}"
        self._topic_partition = TopicPartition(self._name, 0)

    async def run(self, admin: Admin) -> None:
        shared = self._actor.shared
        if self._name in shared.reborn:
            return
        shared.reborn[self._name] = None
        try:
            await self.make(admin)
            with suppress(ClientError):
                await self.write("old")
            with suppress(TopicNotFound):
                await admin.delete_topic(self._name)
            await shared.rest(self._draws.choice((0.0, 0.3, 2.0)))
            if await self.make(admin):
                await self.look(admin)
        finally:
            del shared.reborn[self._name]

    async def make(self, admin: Admin, replicas: int = 0) -> bool:
        """Returns whether it was created just now. It may exist from an attempt that was
        given up."""
        try:
            replicas = replicas or self._draws.choice((1, 2, 3))
            await admin.create_topic(self._name, 1, replicas, {"durability": "fsync"})
        except BrokerError:
            return False
        return True

    async def look(self, admin: Admin) -> None:
        """Writes to the new topic and reads it.

        A broker that cannot reach the store does not learn of the deletion. It serves the old topic
        until its lease is over, and what is written to it is lost, as in Kafka. So the result
        counts only if every broker knew the new topic before. Otherwise it is tried again.
        """
        shared = self._actor.shared
        for _ in range(_LOOKS_MAX):
            begun_ms, is_known = shared.now_ms(), shared.is_known(self._name)
            error = await self._look(admin)
            if is_known or not error:
                self._report(begun_ms, error)
                return
            shared.count("topics_reborn_unheard")
            await shared.rest(_UNHEARD_S)

    async def _look(self, admin: Admin) -> str:
        before = (await admin.describe_topic(self._name)).topic_id
        written = await self.write("new")
        found = await self._read()
        after = (await admin.describe_topic(self._name)).topic_id
        old = [value for value in found if value.startswith("old")]
        missing = [value for value in written if value not in found]
        if old:
            return f"{old} was written before the topic was deleted, but is still there"
        if missing and before == after:
            # A delete request that was given up and sent again may arrive late and delete
            # this topic.
            return f"{missing} was acknowledged, but is missing"
        return ""

    def _report(self, begun_ms: float, error: str) -> None:
        shared = self._actor.shared
        shared.count("topics_reborn")
        shared.history.add(
            Probe(
                process=self._actor.name,
                status=INFO if error else OK,
                begun_ms=begun_ms,
                ended_ms=shared.now_ms(),
                error=error,
                what=f"{self._name}, deleted and made again,",
            )
        )

    async def write(self, age: str) -> list[str]:
        """Writes some records, and returns those that were acknowledged."""
        keywords: dict[str, Any] = {
            **self._actor.keywords,
            "enable_idempotence": True,
            "delivery_timeout_ms": 5_000,
            "max_block_ms": 5_000,
            "allow_auto_create_topics": False,
        }
        shared, values = self._actor.shared, []
        async with Producer(shared.bootstrap, env=self._actor.env, **keywords) as producer:
            for _ in range(_RECORDS):
                value = f"{age} {self._actor.next_value()[1]}"
                delivery = await producer.send(self._name, value.encode(), partition=0)
                await delivery
                values.append(value)
        return values

    async def _read(self) -> list[str]:
        shared, values = self._actor.shared, []
        consumer: BytesConsumer = Consumer(
            shared.bootstrap,
            env=self._actor.env,
            auto_offset_reset="earliest",
            **{**self._actor.keywords, "default_api_timeout_ms": 5_000},
        )
        async with consumer:
            end = (await consumer.end_offsets([self._topic_partition]))[self._topic_partition]
            consumer.assign([self._topic_partition])
            consumer.seek_to_beginning(self._topic_partition)
            for _ in range(_POLLS_MAX):
                values += [
                    (record.value or b"").decode() for record in await consumer.poll(timeout_ms=500)
                ]
                if (consumer.known_position(self._topic_partition) or 0) >= end:
                    return values
        raise ClientError("it could not be read to its end")


async def delete_records(
    operator: Actor,
    admin: Admin,
    partition_name: str,
    offset: int,
    begun_ms: float | None = None,
) -> None:
    """Deletes the records before `offset`, and records it in the history."""
    shared = operator.shared
    since_ms = shared.now_ms() if begun_ms is None else begun_ms
    entry = Deleted(
        process=operator.name,
        status=INFO,
        begun_ms=since_ms,
        ended_ms=since_ms,
        partition_name=partition_name,
        offset=offset,
    )
    # Recorded before the deletion: a reader may be the first to see it.
    shared.history.add(entry)
    await admin.delete_records({TopicPartition.parse(partition_name): offset})
    shared.history.add(replace(entry, status=OK, ended_ms=shared.now_ms()))
    shared.count("records_deleted", offset)
