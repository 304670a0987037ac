"""Many connections of one user that send requests without waiting for the answers.

Each request costs the broker much more than the client. Run it with `python -m
broker.greedy_clients PORT CONNECTIONS USER PASSWORD TOPIC`. For each line of its standard input, it
prints how many answers it has got."""

from __future__ import annotations

import asyncio
import sys

from penstock.security.plain import client_message
from penstock.wire.codec import encode_request
from penstock.wire.messages import (
    MetadataRequest,
    SaslAuthenticateRequest,
    SaslHandshakeRequest,
)

IN_FLIGHT = 4


def metadata_frame(topic: str) -> bytes:
    """Returns a request for the metadata of a topic."""
    request = MetadataRequest([MetadataRequest.Topic(name=topic)], allow_auto_topic_creation=False)
    return b"".join(encode_request(request, 9, 1, "client"))


async def log_in(
    port: int, user: str, password: str
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    token = client_message(user, password)
    for request, version in (
        (SaslHandshakeRequest("PLAIN"), 1),
        (SaslAuthenticateRequest(token), 2),
    ):
        writer.write(b"".join(encode_request(request, version, 1, "client")))
        await answer(reader)
    return reader, writer


async def answer(reader: asyncio.StreamReader) -> bytes:
    return await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big"))


class Greedy:
    def __init__(self, port: int, user: str, password: str, frame: bytes) -> None:
        self._login = port, user, password
        self._frame = frame
        self.answered = 0

    async def run(self) -> None:
        """Keeps one connection busy."""
        reader, writer = await log_in(*self._login)
        for _ in range(IN_FLIGHT):
            writer.write(self._frame)
        while True:
            await answer(reader)
            self.answered += 1
            writer.write(self._frame)


async def main() -> None:
    port, connections, user, password, topic = sys.argv[1:]
    greedy = Greedy(int(port), user, password, metadata_frame(topic))
    async with asyncio.TaskGroup() as tasks:
        running = [tasks.create_task(greedy.run()) for _ in range(int(connections))]
        while await asyncio.to_thread(sys.stdin.readline):
            print(greedy.answered, flush=True)
        for task in running:
            task.cancel()


if __name__ == "__main__":
    asyncio.run(main())
