"""Tests acks=0: a broker that refuses a request closes the connection, and the producer reacts.

Apache Kafka does so when it is not the leader, does not know the partition, or finds a corrupt
batch: a request without a response leaves it no other way to report an error. Records may be lost.
"""

from __future__ import annotations

import asyncio

from client.fake_broker import DROP, DROP_AFTER, FakeBroker
from client.producing.open_producers import producer_of, run, written
from penstock.wire.api import ApiKey
from penstock.wire.messages import MetadataRequest, MetadataResponse
from penstock.wire.messages.base import Response


def test_flush_and_close_succeed_when_the_connection_is_lost(fake: FakeBroker) -> None:
    """There is nothing left to wait for. Later records are sent over another connection."""
    fake.model.add_topic("pets")

    async def main() -> None:
        async with producer_of(fake.address, acks=0) as producer:
            await (await producer.send("pets", b"0"))
            await producer.flush()
            fake.next(ApiKey.METADATA, DROP)
            await (await producer.send("pets", b"1"))
            await producer.flush()
            await (await producer.send("pets", b"2"))
            await producer.flush()
            assert written(fake, "pets") == [b"0", b"1", b"2"]
            fake.next(ApiKey.METADATA, *[DROP] * 2)
            await (await producer.send("pets", b"3"))

    run(main())


def test_a_new_leader_is_found_after_the_connection_is_lost(fake: FakeBroker) -> None:
    """Even though the metadata is recent and the old leader is reachable."""
    topic = fake.model.add_topic("pets")

    async def main() -> None:
        with FakeBroker() as other:
            other.model.topics = fake.model.topics
            port = int(other.address.split(":")[1])
            alone = fake.model.metadata

            def both(request: MetadataRequest, version: int) -> Response:
                answer = alone(request, version)
                assert isinstance(answer, MetadataResponse)
                answer.brokers.append(MetadataResponse.Broker(1, "127.0.0.1", port))
                return answer

            fake.model.metadata = both  # type: ignore[method-assign]
            other.model.metadata = both  # type: ignore[method-assign]
            async with producer_of(fake.address, acks=0) as producer:
                await (await producer.send("pets", b"0"))
                await producer.flush()
                topic.leader = 1
                fake.next(ApiKey.PRODUCE, *[DROP_AFTER] * 1_000)
                for number in range(1, 900):
                    await (await producer.send("pets", b"%d" % number))
                    if other.asked(ApiKey.PRODUCE):
                        break
                    await asyncio.sleep(0.005)
                assert other.asked(ApiKey.PRODUCE)

    run(main())
