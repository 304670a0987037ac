"""Broker settings take effect."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from broker.harness import NOW_MS, BrokerHarness, open_harness, with_harness, with_harness_of
from penstock.broker.config import BrokerConfig, ConfigError
from penstock.broker.coordinators.coordinator_settings import group_config
from penstock.broker.main import run_broker
from penstock.broker.partitions import maintenance
from penstock.broker.partitions.hosted_partition import HostedPartition
from penstock.broker.partitions.topic_rules import compression_level
from penstock.metadata.configs import BrokerConfigs
from penstock.records.batch import Codec, read_header
from penstock.records.record import Record, build_batch
from penstock.testing.slowness import patient
from penstock.wire.messages import ProduceRequest, ProduceResponse

TEXT = Record(
    0,
    NOW_MS,
    None,
    b" ".join(b"%d bottles of beer on the wall," % (number * 7919) for number in range(4000)),
)
QUICK = {"log.retention.check.interval.ms": "1", "log.cleaner.backoff.ms": "0"}


@pytest.mark.parametrize("enabled", [True, False])
def test_compaction_runs_unless_it_is_disabled(
    enabled: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []

    def counted(what: str) -> Callable[..., Awaitable[None]]:
        async def work(_: maintenance.Maintenance, hosted: HostedPartition) -> None:
            done.append(what)

        return work

    monkeypatch.setattr(maintenance, "_TICK_S", 0.001)
    monkeypatch.setattr(maintenance.Maintenance, "_clean", counted("compaction"))
    monkeypatch.setattr(maintenance.Maintenance, "_retain", counted("retention"))

    async def run_case() -> None:
        kafka = {**QUICK, "log.cleaner.enable": "true" if enabled else "false"}
        async with asyncio.timeout(patient(60.0)), open_harness(tmp_path, kafka=kafka) as harness:
            await harness.create("orders")
            await harness.until(lambda: done.count("retention") >= 3)

    asyncio.run(run_case())
    assert ("compaction" in done) == enabled


async def stored_bytes(harness: BrokerHarness, topic: str) -> int:
    """Returns the size of a log after a client has sent an uncompressed batch of text."""
    data = ProduceRequest.Partition(0, build_batch([TEXT]))
    request = ProduceRequest(None, -1, 9000, [ProduceRequest.Topic(topic, partition_data=[data])])
    produced = await harness.ask(request, 9, ProduceResponse)
    assert produced.responses[0].partition_responses[0].error_code == 0
    return harness.hosted(topic).log.size


@with_harness
async def test_a_topic_is_compressed_at_its_configured_level(harness: BrokerHarness) -> None:
    for codec, low, high in (("gzip", "1", "9"), ("lz4", "1", "12"), ("zstd", "1", "15")):
        sizes = []
        for level in (low, high):
            name = f"{codec}-{level}"
            configs = {"compression.type": codec, f"compression.{codec}.level": level}
            await harness.create(name, configs=configs)
            sizes.append(await stored_bytes(harness, name))
            piece = harness.hosted(name).log.read(0, 1 << 20, 1)
            assert piece is not None
            assert read_header(piece.data).codec == Codec[codec.upper()]
            wanted = build_batch([TEXT], codec=Codec[codec.upper()], level=int(level))
            assert sizes[-1] == len(wanted)
        assert sizes[1] != sizes[0]


def test_kafkas_default_compression_levels_are_the_codecs_defaults() -> None:
    for codec in ("gzip", "lz4", "zstd", "snappy", "producer"):
        assert compression_level(BrokerConfigs().settings({"compression.type": codec})) is None


@with_harness_of(
    kafka={"connections.max.idle.ms": "1500", "offsets.retention.check.interval.ms": "2500"}
)
async def test_settings_for_idle_connections_and_expired_offsets_are_used(
    harness: BrokerHarness,
) -> None:
    assert harness.broker._server_config().idle_timeout_s == 1.5
    assert group_config(harness.broker.configs()).offsets_retention_check_interval_ms == 2500


def test_connections_are_idle_after_ten_minutes_by_default() -> None:
    assert BrokerConfig().idle_timeout_s == 600


def test_settings_that_only_describe_a_broker_cannot_be_set() -> None:
    """They would be shown but change nothing. The error names the setting to use instead."""
    for name, key in (("node.id", "broker_id"), ("log.dirs", "data_dir")):
        with pytest.raises(ConfigError, match=f"set {key} instead"):
            BrokerConfig().with_overrides({name: "1"})


def test_settings_without_effect_are_logged_at_startup(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = BrokerConfig(data_dir=str(tmp_path)).with_overrides({"num.io.threads": "4"})
    assert config.without_effect == ["num.io.threads"]
    monkeypatch.setattr("penstock.broker.main.configure_logging", lambda _: None)
    monkeypatch.setattr("penstock.broker.main._serve", _served)
    with caplog.at_level(logging.WARNING):
        assert run_broker(config) == 0
    assert "settings without effect in Penstock: num.io.threads" in caplog.text


async def _served(*_: object) -> int:
    return 0
