"""Writes to the delay topic, and changes its target.

Records are due in the past, at once, soon, or late in the run. Every second sender writes in
transactions and aborts some: their records must never reach the target.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import Any, Final

from penstock.aio import Admin, Producer
from penstock.client.errors import ClientError
from penstock.client.model import RecordMetadata
from penstock.metadata.delay_configs import DELAY_TARGET
from penstock.records.job_headers import DELIVER_AT
from penstock.sim.actors.shared_state import Actor
from penstock.sim.delay_plan import DELAY_TARGETS, DELAY_TOPIC, TARGET_PARTITIONS_MAX, DelayPlan
from penstock.sim.history import INFO, OK, DelayedSend

_KINDS: Final = ("plain", "past", "soon", "any")
_WEIGHTS: Final = (15, 10, 40, 35)
_SOON_S: Final = 3.0
_TRANSACTION_TIMEOUT_MS: Final = 5_000
_COMMIT_SHARE: Final = 0.7

BytesProducer = Producer[bytes | None, bytes | None]


class _Abort(Exception):
    """Raised within a transaction to abort it."""


def _plan_of(actor: Actor) -> DelayPlan:
    plan = actor.shared.scenario.delays
    assert plan is not None
    return plan


async def run_delay_sender(actor: Actor, *, number: int) -> None:
    """Sends until the load is over."""
    shared = actor.shared
    keywords: dict[str, Any] = {
        **actor.keywords,
        "linger_ms": actor.draws.choice((0, 5, 50)),
        "delivery_timeout_ms": actor.draws.choice((5_000, 15_000)),
        "max_block_ms": 5_000,
        "allow_auto_create_topics": False,
    }
    if number % 2:
        keywords["transactional_id"] = f"delayed-{number}"
        keywords["transaction_timeout_ms"] = _TRANSACTION_TIMEOUT_MS
    while not shared.over.is_set():
        producer: BytesProducer = Producer(shared.bootstrap, env=actor.env, **keywords)
        try:
            await producer.start()
            while not shared.over.is_set():
                await shared.rest(actor.pause_s())
                if number % 2:
                    await _send_in_a_transaction(actor, producer)
                else:
                    await _send_some(actor, producer, is_promised=True)
        except ClientError:
            await shared.rest(0.5)
        finally:
            with suppress(ClientError):
                await producer.close(timeout_s=20.0)


async def _send_in_a_transaction(actor: Actor, producer: BytesProducer) -> None:
    with suppress(_Abort):
        async with producer.transaction():
            await _send_some(actor, producer, is_promised=False)
            await actor.shared.rest(actor.draws.choice((0.0, 0.1, 1.0)))
            if actor.draws.random() >= _COMMIT_SHARE:
                raise _Abort
            actor.shared.count("delayed_transactions")


async def _send_some(actor: Actor, producer: BytesProducer, *, is_promised: bool) -> None:
    for _ in range(actor.draws.randint(1, actor.shared.scenario.batch_max)):
        partition_name = actor.draws.choice(_plan_of(actor).partition_names)
        _, value = actor.next_value()
        due_ms = _draw_due(actor)
        headers = [] if due_ms is None else [(DELIVER_AT, str(due_ms).encode())]
        await producer.send(
            DELAY_TOPIC,
            value.encode(),
            partition=int(partition_name.rpartition("-")[2]),
            headers=headers,
            on_delivery=partial(
                _note,
                actor,
                partition_name,
                value,
                due_ms or 0,
                begun_ms=actor.shared.now_ms(),
                is_promised=is_promised,
            ),
        )


def _note(
    actor: Actor,
    partition_name: str,
    value: str,
    due_ms: int,
    metadata: RecordMetadata | None,
    error: Exception | None,
    *,
    begun_ms: float,
    is_promised: bool,
) -> None:
    """Adds a record that was sent to the history, with the latest time that any clock shows."""
    shared = actor.shared
    now_ms = shared.now_ms()
    shared.count("delayed_sends" if metadata is not None else "delayed_sends_failed")
    shared.history.add(
        DelayedSend(
            process=actor.name,
            status=INFO if metadata is None else OK,
            begun_ms=begun_ms,
            ended_ms=now_ms,
            error="" if error is None else str(error),
            partition_name=partition_name,
            value=value,
            due_ms=due_ms,
            is_promised=is_promised,
            wall_max_ms=shared.wall_range(None, 0.0, now_ms)[1],
        )
    )


def _draw_due(actor: Actor) -> int | None:
    draws = actor.draws
    kind = draws.choices(_KINDS, _WEIGHTS)[0]
    if kind == "plain":
        return None
    due_max_s = _plan_of(actor).due_max_s
    if kind == "past":
        ahead_s = -draws.choice((0.1, 10.0, 3_600.0))
    else:
        ahead_s = draws.uniform(0.0, _SOON_S if kind == "soon" else due_max_s)
    return actor.env.clock.wall_ms() + int(1000 * ahead_s)


async def run_delay_admin(actor: Actor) -> None:
    """Changes the target, or its number of partitions, until the load is over."""
    shared = actor.shared
    keywords: dict[str, Any] = {**actor.keywords, "default_api_timeout_ms": 5_000}
    while not shared.over.is_set():
        await shared.rest(2 + 12 * actor.draws.random())
        with suppress(ClientError):
            async with Admin(shared.bootstrap, env=actor.env, **keywords) as admin:
                await _change(actor, admin)


async def _change(actor: Actor, admin: Admin) -> None:
    draws = actor.draws
    chance = draws.random()
    target = draws.choice(DELAY_TARGETS)
    if chance < 0.25:
        known = {topic.name: topic for topic in await admin.list_topics()}[target]
        if len(known.partitions) < TARGET_PARTITIONS_MAX:
            await admin.create_partitions(target, len(known.partitions) + 1)
            actor.shared.count("delay_targets_enlarged")
    elif chance < 0.4:
        await admin.alter_configs(topic=DELAY_TOPIC, delete=[DELAY_TARGET])
        actor.shared.count("delay_targets_removed")
        await actor.shared.rest(3 * draws.random())
        await set_delay_target(admin, target)
    else:
        await set_delay_target(admin, target)
        actor.shared.count("delay_targets_changed")


async def set_delay_target(admin: Admin, target: str) -> None:
    await admin.alter_configs(topic=DELAY_TOPIC, set_values={DELAY_TARGET: target})
