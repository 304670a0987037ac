"""A connection to ZooKeeper that loses answers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress


class Proxy:
    """Passes connections on. While it is `mute`, requests arrive, but answers do not return."""

    def __init__(self, host: str, port: int) -> None:
        self._host = host
        self._port = port
        self.mute = False
        self.lost = asyncio.Event()
        """Set when an answer was lost."""
        self.address = ""
        self._writers: set[asyncio.StreamWriter] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            there_reader, there = await asyncio.open_connection(self._host, self._port)
            self._writers |= {writer, there}
            # A connection that lost an answer gets no later one either.
            await asyncio.wait(
                [
                    asyncio.create_task(self._pass(reader, there, is_answer=False)),
                    asyncio.create_task(self._pass(there_reader, writer, is_answer=True)),
                ],
                return_when=asyncio.FIRST_COMPLETED,
            )
            for each in (writer, there):
                each.close()
                self._writers.discard(each)

    async def _pass(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, is_answer: bool
    ) -> None:
        with suppress(OSError):
            while data := await reader.read(1 << 16):
                if is_answer and self.mute:
                    self.lost.set()
                    return
                writer.write(data)
                await writer.drain()

    def close(self) -> None:
        for writer in list(self._writers):
            writer.close()


@asynccontextmanager
async def proxy_to(endpoint: str) -> AsyncIterator[Proxy]:
    host, _, port = endpoint.rpartition(":")
    proxy = Proxy(host, int(port))
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
    proxy.address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield proxy
    finally:
        proxy.close()
        server.close()
