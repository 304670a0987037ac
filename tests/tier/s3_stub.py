"""A small S3 server for tests, which can be told to behave badly.

It has what `CloudStore` uses: PUT with `If-None-Match`, GET with ranges, HEAD, DELETE and LIST. It
does not check signatures. `moto_server` is the independent implementation; this one is for faults.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

BUCKET = "bucket"
_MODIFIED = "Wed, 18 Nov 2026 10:00:00 GMT"
_REASONS = {200: "OK", 204: "No Content", 206: "Partial Content"}


@dataclass
class Request:
    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def key(self) -> str:
        return unquote(urlsplit(self.path).path).removeprefix(f"/{BUCKET}").lstrip("/")

    @property
    def is_create(self) -> bool:
        return self.method == "PUT" and "if-none-match" in self.headers


@dataclass
class S3Stub:
    """The switches are for all requests from now on."""

    ignores_create: bool = False
    """The header is not known: every PUT overwrites."""
    creates_at_once: bool = False
    """Creates that run at the same time do not see each other."""
    ignores_ranges: bool = False
    forgets_deletes: bool = False
    lists_nothing: bool = False
    status: int = 0
    """Every request gets this answer, and is not carried out."""
    code: str = "Stub"
    """The code of S3 in these answers."""
    write_status: int = 0
    """Every write gets this answer, after it was carried out."""
    drops_answers: bool = False
    """Writes are carried out, and the connection is closed."""
    objects: dict[str, bytes] = field(default_factory=dict)
    requests: list[Request] = field(default_factory=list)
    port: int = 0
    _creating: int = 0

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        self._server.close()
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while (request := await _read_request(reader)) is not None:
                self.requests.append(request)
                answer = await self._answer(request)
                if answer is None:
                    break
                status, headers, body = answer
                writer.write(_response(request, status, headers, body))
                await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def _answer(self, request: Request) -> tuple[int, dict[str, str], bytes] | None:
        if self.status:
            return self.status, {}, f"<Error><Code>{self.code}</Code></Error>".encode()
        answer = await self._carry_out(request)
        if request.method in {"PUT", "DELETE", "POST"}:
            if self.drops_answers:
                return None
            if self.write_status:
                return self.write_status, {}, b"<Error><Code>Stub</Code></Error>"
        return answer

    async def _carry_out(self, request: Request) -> tuple[int, dict[str, str], bytes]:
        key = request.key
        if request.method == "PUT":
            return await self._put(request)
        if request.method == "DELETE":
            if not self.forgets_deletes:
                self.objects.pop(key, None)
            return 204, {}, b""
        if not key:
            return self._list(parse_qs(urlsplit(request.path).query))
        if key not in self.objects:
            return 404, {}, b"<Error><Code>NoSuchKey</Code></Error>"
        return self._read(request, self.objects[key])

    async def _put(self, request: Request) -> tuple[int, dict[str, str], bytes]:
        is_taken = request.is_create and not self.ignores_create and request.key in self.objects
        if request.is_create and self.creates_at_once:
            # All creates that have arrived look first, and write then.
            self._creating += 1
            for _ in range(20):
                await asyncio.sleep(0)
        if is_taken:
            return 412, {}, b"<Error><Code>PreconditionFailed</Code></Error>"
        self.objects[request.key] = request.body
        return 200, {"ETag": '"1"'}, b""

    def _read(self, request: Request, data: bytes) -> tuple[int, dict[str, str], bytes]:
        headers = {"ETag": '"1"', "Last-Modified": _MODIFIED}
        wanted = request.headers.get("range", "")
        if not wanted or self.ignores_ranges:
            return 200, headers, data
        first, _, last = wanted.removeprefix("bytes=").partition("-")
        start, end = int(first), min(len(data), int(last) + 1)
        if start >= len(data):
            return 416, headers, b""
        headers["Content-Range"] = f"bytes {start}-{end - 1}/{len(data)}"
        return 206, headers, data[start:end]

    def _list(self, query: Mapping[str, list[str]]) -> tuple[int, dict[str, str], bytes]:
        prefix, after = query.get("prefix", [""])[0], query.get("start-after", [""])[0]
        items = [] if self.lists_nothing else sorted(self.objects.items())
        contents = "".join(
            f"<Contents><Key>{escape(key)}</Key><LastModified>2026-11-18T10:00:00.000Z"
            f'</LastModified><ETag>"1"</ETag><Size>{len(data)}</Size></Contents>'
            for key, data in items
            if key.startswith(prefix) and key > after
        )
        return 200, {}, f"<ListBucketResult>{contents}</ListBucketResult>".encode()


async def _read_request(reader: asyncio.StreamReader) -> Request | None:
    head = await reader.readline()
    if not head:
        return None
    method, path, _ = head.decode().split(" ")
    headers: dict[str, str] = {}
    while (line := await reader.readline()) not in {b"\r\n", b""}:
        name, _, value = line.decode().partition(":")
        headers[name.strip().lower()] = value.strip()
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    return Request(method, path, headers, body)


def _response(request: Request, status: int, headers: Mapping[str, str], body: bytes) -> bytes:
    lines = [f"HTTP/1.1 {status} {_REASONS.get(status, 'Error')}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    lines.append(f"Content-Length: {len(body)}")
    head = "\r\n".join([*lines, "", ""]).encode()
    return head if request.method == "HEAD" else head + body
