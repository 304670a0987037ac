"""Reads what the brokers of a harness have written to their audit record."""

from __future__ import annotations

from broker.harness import BrokerHarness
from penstock.metadata.model import AUDIT_TOPIC
from penstock.records.batch import iter_batches
from penstock.records.record import read_records
from penstock.security.audit import AuditEvent
from penstock.sim.disk.disk import SimDisk


def read_log(disk: SimDisk, path: str = "/broker-0/audit.log") -> str:
    """Returns the text of the audit log; empty if there is none."""
    if not disk.exists(path):
        return ""
    file = disk.open(path)
    try:
        return bytes(file.pread(file.size(), 0)).decode()
    finally:
        file.close()


def read_topic(harness: BrokerHarness, broker: int = 0) -> list[str]:
    """Returns the records of the topic on one broker."""
    hosted = harness.brokers[broker].replicas.get(AUDIT_TOPIC, 0)
    found: list[str] = []
    if hosted is None:
        return found
    offset = hosted.log.log_start_offset
    while (piece := hosted.log.read(offset, 1 << 20)) is not None:
        for position, header in iter_batches(piece.data):
            part = piece.data[position : position + header.size]
            found += [bytes(held.value or b"").decode() for held in read_records(part)]
            offset = header.next_offset
    return found


async def written(harness: BrokerHarness) -> list[AuditEvent]:
    """Writes all events now. Returns those in the topic, and asserts that the log has the same."""
    audit = harness.broker.audit
    await audit.finish()
    await harness.until(lambda: audit.outlets[-1].waiting == 0)
    lines = read_log(harness.disks[0]).splitlines()
    assert lines == read_topic(harness)
    return [AuditEvent.from_json(line) for line in lines]
