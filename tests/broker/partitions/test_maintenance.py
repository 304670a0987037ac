"""When maintenance of one log fails, the broker and all other logs go on."""

from __future__ import annotations

import logging

import pytest

from broker.harness import NOW_MS, BrokerHarness, maintenance_of, with_harness
from broker.metrics.test_metrics import Scraper
from penstock.broker.partitions.maintenance import PAUSE_MAX_S, PAUSE_S
from penstock.records.record import Record, build_batch
from penstock.sim.actors.bad_batches import bad_batch
from penstock.wire.messages import IncrementalAlterConfigsRequest, IncrementalAlterConfigsResponse

COMPACTION, RETENTION = "compaction", "retention"


async def fill(harness: BrokerHarness, topic: str, *batches: bytearray) -> None:
    """Appends each batch to its own sealed segment, and waits until all are synced and
    committed.
    """
    hosted = harness.hosted(topic)
    for batch in batches:
        hosted.append_own(batch, NOW_MS)
        hosted.log.roll(NOW_MS)
    end = hosted.log.end_offset
    await harness.until_synced(topic, end)
    await harness.until(lambda: hosted.high_watermark == end)


def batch_of(key: bytes, value: bytes | None) -> bytearray:
    return build_batch([Record(0, NOW_MS, key, value)])


@with_harness
async def test_maintenance_of_a_failing_log_is_paused_and_the_others_go_on(
    harness: BrokerHarness,
) -> None:
    """Each pause is longer than the last, up to a maximum. A change of the log's settings ends
    it.
    """
    maintenance = maintenance_of(harness.services)
    await harness.create("bad")
    await harness.create("good")
    tried: list[str] = []
    fails = True

    async def work(hosted: object) -> None:
        name: str = hosted.topic  # type: ignore[attr-defined]
        tried.append(name)
        if name == "bad" and fails:
            raise RuntimeError("a bug")

    clock = harness.services.env.clock
    bad = harness.hosted("bad")
    key = bad.topic_id, 0, COMPACTION
    for doubled in range(12):
        tried.clear()
        await maintenance._each(COMPACTION, work)
        assert sorted(tried) == ["bad", "good"]
        pause = maintenance._pauses[key]
        assert pause.pause_s == min(PAUSE_MAX_S, PAUSE_S * 2**doubled)
        tried.clear()
        await maintenance._each(COMPACTION, work)
        assert tried == ["good"]
        await maintenance._each(RETENTION, lambda _: _nothing())
        assert harness.services.counters.cleaner.paused_logs == 1
        pause.until = clock.monotonic()
    scraped = await Scraper(harness.broker).come()
    assert scraped.value("penstock_maintenance_failures_total") == 12
    assert scraped.value("penstock_maintenance_paused_logs") == 1
    maintenance._pauses[key].until = clock.monotonic() + 1000
    entry = IncrementalAlterConfigsRequest.Config("retention.ms", 0, "1000")
    changed = IncrementalAlterConfigsRequest.Resource(2, "bad", [entry])
    before = bad.settings
    await harness.ask(IncrementalAlterConfigsRequest([changed]), 1, IncrementalAlterConfigsResponse)
    await harness.until(lambda: bad.settings is not before)
    fails = False
    tried.clear()
    await maintenance._each(COMPACTION, work)
    assert sorted(tried) == ["bad", "good"]
    assert harness.services.counters.cleaner.paused_logs == 0


async def _nothing() -> None:
    pass


@with_harness
async def test_a_failed_compaction_leaves_no_files(harness: BrokerHarness) -> None:
    await harness.create("state", configs={"cleanup.policy": "compact"})
    await fill(harness, "state", *(batch_of(b"k", b"%d" % at) for at in range(3)))
    maintenance = maintenance_of(harness.services)
    log = harness.hosted("state").log

    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("a bug")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("penstock.storage.cleaner.compact_batch", broken)
        await maintenance._each(COMPACTION, maintenance._clean)
    assert harness.services.counters.cleaner.failures == 1
    assert log.failure is None
    for pause in maintenance._pauses.values():
        pause.until = 0.0
    await maintenance._each(COMPACTION, maintenance._clean)
    assert harness.services.counters.cleaner.runs == 1
    assert not [name for name in harness.disks[0].listdir(log.directory) if "cleaned" in name]


@with_harness
async def test_a_batch_that_cannot_be_decoded_does_not_stop_compaction(
    harness: BrokerHarness,
) -> None:
    """An older version accepted it. It is kept, the rest is compacted, and one log line reports
    it.
    """
    lines: list[str] = []

    class Collect(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(record.getMessage())

    handler = Collect()
    logging.getLogger("penstock.broker.partitions.maintenance").addHandler(handler)
    await harness.create("state", configs={"cleanup.policy": "compact"})
    malformed = bad_batch("count_too_high", [Record(0, NOW_MS, b"k", b"v")])
    await fill(
        harness,
        "state",
        batch_of(b"a", b"1"),
        malformed,
        *(batch_of(b"a", b"%d" % at * 100) for at in range(2, 6)),
    )
    maintenance = maintenance_of(harness.services)
    before = harness.hosted("state").log.size
    await maintenance._each(COMPACTION, maintenance._clean)
    logging.getLogger("penstock.broker.partitions.maintenance").removeHandler(handler)
    assert harness.services.counters.cleaner.runs == 1
    assert harness.services.counters.cleaner.undecodable_batches == 1
    assert harness.hosted("state").log.size < before
    assert [line for line in lines if "1 batches cannot be decoded" in line]
