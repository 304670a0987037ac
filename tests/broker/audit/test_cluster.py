"""The brokers of a cluster share the topic `__audit`."""

from __future__ import annotations

import asyncio
import json
import ssl
from functools import partial
from pathlib import Path

from broker.listeners.test_secured_cluster import listeners, replicates, tls_settings
from broker.three_brokers import ThreeBrokers, three_brokers
from penstock.broker.audit.trail import AuditTrail
from penstock.metadata.model import AUDIT_TOPIC
from penstock.security.audit import AuditEvent
from penstock.testing.slowness import patient
from penstock.wire.messages import CreateTopicsRequest, CreateTopicsResponse

SETTINGS = {"authorizer.class.name": "penstock", "super.users": "User:ANONYMOUS"}


def _is_written(audit: AuditTrail) -> bool:
    return audit.outlets[-1].waiting == 0


def test_a_broker_that_leads_no_partition_sends_its_events_to_the_leader(tmp_path: Path) -> None:
    async def run() -> None:
        async with asyncio.timeout(patient(100)), three_brokers(tmp_path, SETTINGS) as cluster:
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


def login_events(cluster: ThreeBrokers) -> list[AuditEvent]:
    """Returns the logins that the topic has, on broker 0."""
    if cluster.broker(0).replicas.get(AUDIT_TOPIC, 0) is None:
        return []
    events = map(AuditEvent.from_json, cluster.values(0, AUDIT_TOPIC))
    return [each for each in events if each.action == "login"]


async def knock_without_certificate(port: int) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
        await reader.read(1)
        writer.close()
    except (OSError, ssl.SSLError):
        pass


def test_logins_by_certificate_and_clients_without_one_are_recorded(tmp_path: Path) -> None:
    settings = listeners("SSL") | tls_settings(tmp_path)
    settings |= {"listener.name.secure.ssl.client.auth": "required", "audit.enabled": "true"}

    async def run() -> None:
        async with asyncio.timeout(patient(100)), three_brokers(tmp_path, settings) as cluster:
            await cluster.create(min_insync_replicas="3")
            await replicates(cluster, b"value")
            secure = cluster.broker(0).server.listeners["SECURE"].listener
            assert secure is not None
            await knock_without_certificate(secure.address()[1])
            wanted = {
                ("CN=broker", "allowed", None),
                (None, "denied", "certificate not accepted"),
            }

            def found() -> set[tuple[str | None, str, str | None]]:
                return {
                    (each.user, each.outcome.value, each.rule) for each in login_events(cluster)
                }

            await cluster.until(lambda: wanted <= found())
            assert all(each.listener == "SECURE" for each in login_events(cluster))

    asyncio.run(run())
