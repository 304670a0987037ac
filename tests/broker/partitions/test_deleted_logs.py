"""A log that cannot be deleted because the disk fails does not end the broker."""

from __future__ import annotations

from errno import EIO

from broker.harness import BrokerHarness, with_harness
from penstock.broker.partitions.deleted_logs import _RETRY_PAUSES_S
from penstock.wire.messages import DeleteTopicsRequest, DeleteTopicsResponse

ATTEMPTS = len(_RETRY_PAUSES_S) + 1


async def delete(harness: BrokerHarness, name: str) -> None:
    request = DeleteTopicsRequest([DeleteTopicsRequest.Topic(name)])
    answer = await harness.ask(request, 6, DeleteTopicsResponse)
    assert answer.responses[0].error_code == 0
    await harness.services.replicas.settled()


@with_harness
async def test_a_deletion_is_tried_again(harness: BrokerHarness) -> None:
    """Seed 4818 ended a broker: the sync of the directory failed once."""
    disk = harness.disks[0]
    root = harness.broker._directory.root
    for operation in ("rename", "sync_directory"):
        await harness.create("t")
        await harness.produce("t", [b"old"])
        disk.fail_next(operation, EIO, path_contains=root, times=ATTEMPTS - 1)
        await delete(harness, "t")
        await harness.create("t")
        assert await harness.produce("t", [b"new"]) == 0
        await delete(harness, "t")


@with_harness
async def test_the_broker_goes_on_if_a_log_cannot_be_deleted(harness: BrokerHarness) -> None:
    """A topic of the same name is hosted once the old files are gone."""
    disk = harness.disks[0]
    root = harness.broker._directory.root
    await harness.create("t")
    await harness.produce("t", [b"old"])
    disk.fail_next("rename", EIO, path_contains=root, times=ATTEMPTS)
    await delete(harness, "t")
    assert disk.exists(f"{root}/t-0")
    await harness.create("other")
    await harness.produce("other", [b"x"])
    await harness.create("t")
    await harness.until(lambda: harness.broker.replicas.get("t", 0) is not None)
    assert harness.hosted("t").log.end_offset == 0
    assert await harness.produce("t", [b"new"]) == 0
