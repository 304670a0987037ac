"""Writes a warning at most once per interval, so that a client cannot fill the disk with them."""

from __future__ import annotations

import logging
from typing import Final

LOG_INTERVAL_S: Final = 10.0


class ThrottledLog:
    """The warnings of one kind. The next line says how many were left out."""

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._logged_at: float | None = None
        self._unlogged = 0

    def warn(self, message: str, now: float) -> None:
        """Logs the message, unless one was logged a moment ago. `now` is in seconds."""
        if self._logged_at is not None and now - self._logged_at < LOG_INTERVAL_S:
            self._unlogged += 1
            return
        more = f"; {self._unlogged} more since the last such message" if self._unlogged else ""
        self._log.warning("%s%s", message, more)
        self._logged_at = now
        self._unlogged = 0
