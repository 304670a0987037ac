"""A client that sends batches with a valid CRC whose records cannot be decoded.

The broker must refuse each with an error and append nothing. Once such a batch is in the log, no
reader gets past it.
"""

from __future__ import annotations

from typing import Final

from penstock.client.errors import ClientError
from penstock.records.record import Record
from penstock.sim.actors.bad_batches import KINDS, bad_batch
from penstock.sim.actors.sends import Answered, produce, with_cluster
from penstock.sim.actors.shared_state import Actor
from penstock.sim.history import ACKS_ALL, FAIL, OK, Malformed

_PAUSE_S: Final = 2.0


async def run_malformer(actor: Actor) -> None:
    cluster = await with_cluster(actor)
    if cluster is None:
        return
    shared = actor.shared
    try:
        while not shared.over.is_set():
            await shared.rest(2 * _PAUSE_S * actor.draws.random())
            partition_name = actor.draws.choice(shared.scenario.written)
            kind = actor.draws.choice(KINDS)
            begun_ms = shared.now_ms()
            try:
                offset = await produce(
                    cluster, partition_name, _batch(actor, kind), ACKS_ALL, _nothing
                )
            except Answered as answered:
                status, error, offset = FAIL, str(answered), -1
            except ClientError:
                await shared.rest(0.3)
                continue
            else:
                status, error = OK, ""
            shared.count(f"malformed_{status}")
            shared.history.add(
                Malformed(
                    process=actor.name,
                    status=status,
                    begun_ms=begun_ms,
                    ended_ms=shared.now_ms(),
                    error=error,
                    partition_name=partition_name,
                    batch=kind,
                    offset=offset,
                )
            )
    finally:
        cluster.close()


def _batch(actor: Actor, kind: str) -> bytes:
    now_ms = actor.env.clock.wall_ms()
    count = actor.draws.randint(1, 3)
    return bytes(bad_batch(kind, [Record(at, now_ms, b"k", b"bad") for at in range(count)]))


def _nothing() -> None:
    pass
