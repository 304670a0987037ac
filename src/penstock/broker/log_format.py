"""Log formats: lines for people, or JSON for programs.

    11:33:13.123 info    broker 0: orders-3: leader 2 -> 0, broker 2 is gone; epoch 5, ...
    {"time": "2026-11-15T11:33:13.123Z", "level": "info", "broker": 0, "event": "leader_change",
     "topic": "orders", "partition": 3, "leader_before": 2, "leader": 0, ..., "message": "..."}

All code logs through the standard library. `tell` logs a line with fields. Lines go to standard
error, because scripts read standard output.
"""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Any, Final

from penstock.broker.config import BrokerConfig, LogFormat

_EVENT: Final = "event"
_FIELDS: Final = "fields"


def tell(
    log: logging.Logger, event: str, text: str, level: int = logging.INFO, **fields: object
) -> None:
    """Logs one line, with its values as fields."""
    log.log(level, "%s", text, extra={_EVENT: event, _FIELDS: fields}, stacklevel=2)


class HumanFormatter(logging.Formatter):
    """Time of day, level, broker (several may share a terminal) and message."""

    def __init__(self, broker_id: int) -> None:
        super().__init__()
        self._broker_id = broker_id

    def format(self, record: logging.LogRecord) -> str:
        when = f"{self.formatTime(record, '%H:%M:%S')}.{int(record.msecs):03d}"
        line = (
            f"{when} {record.levelname.lower():7} broker {self._broker_id}: {record.getMessage()}"
        )
        if record.exc_info:
            line += f"\n{self.formatException(record.exc_info)}"
        return line


class JsonFormatter(logging.Formatter):
    """One JSON object per line: the standard fields, and those of the event."""

    def __init__(self, broker_id: int) -> None:
        super().__init__()
        self._broker_id = broker_id

    def format(self, record: logging.LogRecord) -> str:
        moment = datetime.fromtimestamp(record.created, UTC)
        event = getattr(record, _EVENT, None)
        line: dict[str, Any] = {
            "time": moment.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "broker": self._broker_id,
            **({} if event is None else {"event": event}),
            "message": record.getMessage(),
        }
        line |= getattr(record, _FIELDS, {})
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def configure_logging(config: BrokerConfig) -> None:
    """Makes this process log to standard error, and nowhere else."""
    handler = logging.StreamHandler(sys.stderr)
    formatter = JsonFormatter if config.log_format == LogFormat.JSON else HumanFormatter
    handler.setFormatter(formatter(config.broker_id))
    logging.basicConfig(handlers=[handler], level=config.log_level.upper(), force=True)
