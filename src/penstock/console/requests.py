"""Parses what browsers send into plain values. Raises `BadRequest` for anything invalid."""

from __future__ import annotations

import json
import math
from collections.abc import AsyncIterator, Mapping
from typing import Any, Final

from starlette.requests import ClientDisconnect, Request

from penstock.client.serializers import Avro
from penstock.console.errors import BadRequest
from penstock.console.filters import BadFilter, Test, compile_filter
from penstock.console.messages import LIMIT_MAX, Query
from penstock.console.shown import FORMATS, PREVIEW_CHARACTERS, Format
from penstock.console.uploads import TOO_LARGE, Upload
from penstock.spark.deployments.catalog_view import ARCHIVE_BYTES_MAX
from penstock.topic_partition import TopicPartition

BODY_BYTES_MAX: Final = 8 << 20
_OFFSET_MAX: Final = 2**63 - 1
_INT32_MAX: Final = 2**31 - 1


ZIP: Final = "application/zip"


def uploaded(request: Request) -> Upload:
    """Returns an archive that is posted. No form of another site can have this type
    of content."""
    if request.headers.get("content-type", "") != ZIP:
        raise BadRequest(f"the request must be an archive: set content-type to {ZIP}")
    length = request.headers.get("content-length", "0")
    if not length.isdecimal() or len(length) > 19 or int(length) > ARCHIVE_BYTES_MAX:
        raise BadRequest(TOO_LARGE)

    async def gone() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    return Upload(_received(request), gone)


async def _received(request: Request) -> AsyncIterator[bytes]:
    try:
        async for part in request.stream():
            yield part
    except ClientDisconnect:
        raise BadRequest("the browser stopped sending: try again") from None


class Body:
    """A JSON object that was posted. Each method reads a field and checks its type."""

    def __init__(self, content: Mapping[str, Any]) -> None:
        self._content = content

    @classmethod
    async def read(cls, request: Request) -> Body:
        if request.headers.get("content-type", "").partition(";")[0] != "application/json":
            raise BadRequest("the request must be JSON: set content-type to application/json")
        received = bytearray()
        async for part in request.stream():
            received += part
            if len(received) > BODY_BYTES_MAX:
                raise BadRequest(f"the request is larger than {BODY_BYTES_MAX >> 20} MiB")
        try:
            content = json.loads(received)
        except (ValueError, RecursionError) as error:
            raise BadRequest("the request is not valid JSON") from error
        if not isinstance(content, dict):
            raise BadRequest("the request must be a JSON object")
        return cls(content)

    def text(self, name: str, default: str | None = None) -> str:
        found = self._content.get(name, default)
        if not isinstance(found, str):
            raise BadRequest(f"{name} must be a string")
        return found

    def maybe_text(self, name: str) -> str | None:
        return None if self._content.get(name) is None else self.text(name)

    def whole(self, name: str, default: int | None = None, least: int = 0) -> int:
        found = self._content.get(name, default)
        if type(found) is not int or not least <= found <= _OFFSET_MAX:
            raise BadRequest(f"{name} must be a whole number, {least} or more")
        return found

    def maybe_whole(self, name: str, least: int = 0) -> int | None:
        return None if self._content.get(name) is None else self.whole(name, least=least)

    def number(self, name: str) -> float:
        found = self._content.get(name)
        if isinstance(found, bool) or not isinstance(found, int | float):
            raise BadRequest(f"{name} must be a number")
        if not math.isfinite(found):
            raise BadRequest(f"{name} must be a finite number")
        return float(found)

    def flag(self, name: str) -> bool:
        return self._content.get(name) is True

    def texts(self, name: str) -> list[str]:
        found = self._content.get(name) or []
        if not isinstance(found, list) or not all(isinstance(each, str) for each in found):
            raise BadRequest(f"{name} must be a list of strings")
        return found

    def wholes(self, name: str) -> list[int]:
        found = self._content.get(name) or []
        if not isinstance(found, list) or not all(
            type(each) is int and 0 <= each <= _INT32_MAX for each in found
        ):
            raise BadRequest(f"{name} must be a list of whole numbers")
        return found

    def pairs(self, name: str) -> dict[str, str]:
        found = self._content.get(name) or {}
        if not isinstance(found, dict) or not all(isinstance(each, str) for each in found.values()):
            raise BadRequest(f"{name} must be an object with string values")
        return found

    def objects(self, name: str) -> list[Body]:
        found = self._content.get(name) or []
        if not isinstance(found, list) or not all(isinstance(each, dict) for each in found):
            raise BadRequest(f"{name} must be a list of objects")
        return [Body(each) for each in found]

    # -- fields of several requests -------------------------------------------------------------

    def partitions(self) -> tuple[int, ...] | None:
        found = tuple(self.wholes("partitions"))
        return found or None

    def test(self) -> Test:
        try:
            return compile_filter(self.text("filter", ""))
        except BadFilter as error:
            raise BadRequest(f"filter: {error}") from error

    def format(self, *, whole: bool = False) -> Format:
        name = self.text("format", "auto")
        if name not in FORMATS:
            raise BadRequest(f"format must be one of {', '.join(FORMATS)}, not {name!r}")
        avro = None
        if name == "avro":
            try:
                avro = Avro(self.text("avro_schema")).deserialize
            except ImportError as error:
                raise BadRequest(str(error)) from error
            except Exception as error:
                # The user typed the schema, and fastavro has a different error for each mistake.
                raise BadRequest(f"the Avro schema cannot be used: {error}") from error
        return Format(name, avro, None if whole else PREVIEW_CHARACTERS)

    def query(self) -> Query:
        cursor = self._content.get("cursor")
        if cursor is not None and not (
            isinstance(cursor, dict)
            and all(each.isdecimal() and len(each) < 11 for each in cursor)
            and all(type(each) is int and 0 <= each <= _OFFSET_MAX for each in cursor.values())
        ):
            raise BadRequest("cursor must be one from an earlier response")
        return Query(
            self.partitions(),
            self.text("start", "newest"),
            self.whole("value", 0),
            max(1, min(self.whole("limit", 50), LIMIT_MAX)),
            self.test(),
            bool(self.text("filter", "").strip()),
            self.format(),
            None if cursor is None else {int(part): at for part, at in cursor.items()},
        )

    def offsets(self, name: str) -> dict[TopicPartition, int]:
        return {
            TopicPartition(each.text("topic"), each.whole("partition")): each.whole("to")
            for each in self.objects(name)
        }


def number(request: Request, name: str, default: int, most: int = _OFFSET_MAX) -> int:
    given = request.query_params.get(name)
    if given is None:
        return default
    if not (given.isascii() and given.isdecimal() and len(given) < 20 and int(given) <= most):
        raise BadRequest(f"{name} must be a whole number")
    return int(given)
