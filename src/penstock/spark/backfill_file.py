"""The file by which a stream in a deployed pipeline learns of backfills.

The driver's process writes it, and names it in its environment. Spark plans a stream in a Python
process of its own, which inherits that environment and looks into the file before each micro-batch.
Without the variable there are no backfills.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from penstock.spark.offset_ranges import from_json
from penstock.spark.stream_position import BackfillRequest

log = logging.getLogger(__name__)
VARIABLE: Final = "PENSTOCK_BACKFILLS"


def write_requests(path: Path, requests: Sequence[BackfillRequest]) -> None:
    """Replaces the file, so that a reader sees the old or the new content."""
    from penstock.client.dataclass_json import plain  # noqa: PLC0415 -- slow, and rarely needed

    fresh = path.with_name(f"{path.name}.new")
    fresh.write_text(json.dumps([plain(each) for each in requests]), "utf-8")
    fresh.replace(path)


def remove(path: Path) -> None:
    with suppress(FileNotFoundError):
        path.unlink()


class RequestFile:
    """Reads the requests for one flow. Reads the file again only after it was replaced."""

    def __init__(self, flow: str, path: str | None = None) -> None:
        given = os.environ.get(VARIABLE, "") if path is None else path
        self._path = Path(given) if given and flow else None
        self._flow = flow
        self._seen: tuple[int, int] = 0, 0
        self._requests: list[BackfillRequest] = []

    @property
    def is_used(self) -> bool:
        """Whether there can be backfills at all."""
        return self._path is not None

    def requests(self) -> list[BackfillRequest]:
        if self._path is None:
            return []
        try:
            found = self._path.stat()
            if (found.st_mtime_ns, found.st_ino) != self._seen:
                content = json.loads(self._path.read_text("utf-8"))
                every = [_request(each) for each in content]
                for each in every:
                    from_json(each.ranges)  # It raises if they are not ranges.
                self._requests = [each for each in every if self._flow in each.sources]
                self._seen = found.st_mtime_ns, found.st_ino
        except FileNotFoundError:
            return []
        except (OSError, ValueError, TypeError, KeyError) as error:
            # A backfill that was begun is in the checkpoint and goes on.
            log.warning("cannot read the backfill requests: %s", error)
        return self._requests


def _request(content: object) -> BackfillRequest:
    """Returns a request from its JSON data. Raises ValueError, TypeError or KeyError."""
    from penstock.client.dataclass_json import builder  # noqa: PLC0415 -- slow, and rarely needed

    request: BackfillRequest = builder(BackfillRequest)(content)
    return request
