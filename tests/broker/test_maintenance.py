"""What a broker does now and then: the settings that rule it have their effect."""

from __future__ import annotations

from penstock.records.record import Record, build_batch

from .stage import Stage, staged_with

OFTEN = {"log.retention.check.interval.ms": "1"}


async def _append_old(stage: Stage) -> None:
    """A batch of an idempotent producer whose record is from 1970."""
    await stage.create("orders")
    batch = build_batch(
        [Record(0, 5, b"k", b"v")], producer_id=4, producer_epoch=0, base_sequence=0
    )
    stage.hosted("orders").append(memoryview(batch), stage.services.now_ms())


@staged_with(kafka=OFTEN | {"producer.id.expiration.ms": "1"})
async def test_an_idle_producer_is_forgotten(stage: Stage) -> None:
    """`producer.id.expiration.ms` says after how long."""
    await _append_old(stage)
    await stage.until(lambda: not stage.hosted("orders").log.producers.knows(4))


@staged_with(kafka=OFTEN)
async def test_a_producer_of_old_records_is_remembered(stage: Stage) -> None:
    """Rounds of retention pass over it: what it wrote is old, the producer is not."""
    await _append_old(stage)
    producers, rounds = stage.hosted("orders").log.producers, 0
    expire = producers.expire

    class Counted:
        def expire(self, now_ms: int, expiration_ms: int) -> list[int]:
            nonlocal rounds
            rounds += 1
            return expire(now_ms, expiration_ms)

        def __getattr__(self, name: str) -> object:
            return getattr(producers, name)

    stage.hosted("orders").log.producers = Counted()  # type: ignore[assignment]
    await stage.until(lambda: rounds >= 2)
    assert producers.knows(4)
