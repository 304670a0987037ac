"""A compacted topic with one writer and few keys: the newest value of each key must survive.

Compaction removes records, so the checks of ordinary topics do not apply, and the invariants ignore
this topic. Rule I14 must hold: for every key the newest acknowledged value, or a later one, is
there when the run is over. Under traffic, operators change the topic's cleanup policy, and replicas
are rebuilt from leaders whose logs have gaps.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any, Final

from penstock.aio import Consumer, Producer
from penstock.client.errors import ClientError
from penstock.sim.actors.readers import BytesConsumer
from penstock.sim.actors.shared_state import Actor
from penstock.sim.history import INFO, OK, TABLE, Probe
from penstock.topic_partition import TopicPartition

KEYS: Final = ("a", "b", "c")
TOPIC_PARTITION: Final = TopicPartition(TABLE, 0)
POLICIES: Final = ("compact", "compact", "delete", "compact,delete")
CONFIGS: Final[dict[str, str]] = {
    "cleanup.policy": "compact",
    "segment.bytes": "300",
    "min.cleanable.dirty.ratio": "0.01",
    "delete.retention.ms": "1000",
    "durability": "fsync",
}


async def run_table_writer(actor: Actor) -> None:
    """Writes one value after the other. `shared.table` has the newest acknowledged value of
    each key."""
    shared = actor.shared
    keywords: dict[str, Any] = {
        **actor.keywords,
        "enable_idempotence": True,
        "delivery_timeout_ms": 10_000,
        "max_block_ms": 5_000,
        "allow_auto_create_topics": False,
    }
    while not shared.over.is_set():
        with suppress(ClientError):
            async with Producer(shared.bootstrap, env=actor.env, **keywords) as producer:
                while not shared.over.is_set():
                    await shared.rest(actor.pause_s() / 2)
                    number, _ = actor.next_value()
                    key, value = actor.draws.choice(KEYS), f"{number}"
                    delivery = await producer.send(
                        TABLE, value.encode(), key=key.encode(), partition=0
                    )
                    await delivery
                    shared.table[key] = int(value)
                    shared.count("table_writes")
        await shared.rest(0.5)


async def check_table(actor: Actor) -> None:
    """Reads the whole topic. The last value of each key counts."""
    shared = actor.shared
    if not shared.scenario.tables:
        return
    begun_ms, error = shared.now_ms(), ""
    newest: dict[str, int] = {}
    records = 0
    try:
        async with asyncio.timeout(shared.scenario.mend_s):
            consumer: BytesConsumer = Consumer(
                shared.bootstrap, env=actor.env, auto_offset_reset="earliest", **actor.keywords
            )
            async with consumer:
                end = (await consumer.end_offsets([TOPIC_PARTITION]))[TOPIC_PARTITION]
                consumer.assign([TOPIC_PARTITION])
                consumer.seek_to_beginning(TOPIC_PARTITION)
                while (consumer.known_position(TOPIC_PARTITION) or 0) < end:
                    for record in await consumer.poll(timeout_ms=500):
                        newest[(record.key or b"").decode()] = int(record.value or b"-1")
                        records += 1
    except (ClientError, TimeoutError) as failed:
        error = str(failed) or "it took too long"
    else:
        shared.count("table_records_left", records)
        for key, number in shared.table.items():
            if newest.get(key, -1) < number:
                error = f"I14: {key} has the value {newest.get(key)}, but {number} was acknowledged"
    shared.history.add(
        Probe(
            process=actor.name,
            status=INFO if error else OK,
            begun_ms=begun_ms,
            ended_ms=shared.now_ms(),
            error=error,
            what="reading the newest values of a compacted topic",
        )
    )
