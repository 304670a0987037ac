"""The brokers of a cluster share the topic `__audit`."""

from __future__ import annotations

import asyncio
import json
from functools import partial
from pathlib import Path

from broker.three_brokers import three_brokers
from penstock.broker.audit.trail import AuditTrail
from penstock.metadata.model import AUDIT_TOPIC
from penstock.wire.messages import CreateTopicsRequest, CreateTopicsResponse

SETTINGS = {"authorizer.class.name": "penstock", "super.users": "User:ANONYMOUS"}


def _is_written(audit: AuditTrail) -> bool:
    return audit.outlets[-1].waiting == 0


def test_a_broker_that_leads_no_partition_sends_its_events_to_the_leader(tmp_path: Path) -> None:
    async def run() -> None:
        async with asyncio.timeout(100), three_brokers(tmp_path, SETTINGS) as cluster:
            for number, node in enumerate(cluster.nodes):
                asked = CreateTopicsRequest([CreateTopicsRequest.Topic(f"t{number}", 1, 1)])
                made = await node.ask(asked, 7, CreateTopicsResponse)
                assert made.topics[0].error_code == 0
            for node in cluster.nodes:
                audit = cluster.broker(node.broker_id).audit
                await audit.outlets[-1].drain()
                await cluster.until(partial(_is_written, audit))
            lines = await cluster.all_equal(AUDIT_TOPIC)
            events = [json.loads(line) for line in lines]
            created = [each["resource"] for each in events if each["action"] == "topic.create"]
            assert sorted(created) == ["topic:t0", "topic:t1", "topic:t2"]
            assert len(cluster.partition(AUDIT_TOPIC).replicas) == 3

    asyncio.run(run())
