"""Writes known records at a steady rate, and keeps those that the brokers acknowledged."""

from __future__ import annotations

import json
import threading
import time
from typing import Any, NamedTuple

from penstock import Producer
from penstock.testing.slowness import patient

from .pipelines import EVENTS

KEYS = 20
CLOSING = "close"
"""The key of records that only move the watermark on, at the end of the run."""
DELIVERY_MS = 180_000
WAITING_MAX = 5_000
_TURN_S = 0.05


class Row(NamedTuple):
    """One record. `number` counts the records of its key from 0 on."""

    key: str
    number: int
    at_ms: int


def encode(row: Row) -> bytes:
    return json.dumps({"n": row.number, "t": row.at_ms}).encode()


def decode(key: bytes | None, value: bytes | None) -> Row:
    content = json.loads(value or b"")
    return Row((key or b"").decode(), content["n"], content["t"])


class Load:
    def __init__(self, bootstrap: str, per_second: int) -> None:
        self._bootstrap = bootstrap
        self._per_turn = per_second * _TURN_S
        self._lock = threading.Lock()
        self._next: dict[str, int] = {}
        self._waiting = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="load")
        self._producer: Producer[Any, Any] | None = None
        self._stall_s = 0.0
        self._last_s = time.monotonic()
        self.acknowledged: list[Row] = []
        self.uncertain: list[tuple[Row, str]] = []
        """Records whose send failed: they may be there or not."""
        self.error: BaseException | None = None

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Ends the load. Returns when every record was acknowledged or has failed."""
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join(patient(DELIVERY_MS / 1000 + 60))

    @property
    def stall_s(self) -> float:
        """The longest time without an acknowledgement."""
        return self._stall_s

    def _run(self) -> None:
        try:
            with Producer(
                self._bootstrap, linger_ms=20, delivery_timeout_ms=int(patient(DELIVERY_MS))
            ) as producer:
                self._producer = producer
                began, sent = time.monotonic(), 0
                while not self._stop.is_set():
                    due = int((time.monotonic() - began) / _TURN_S * self._per_turn)
                    while sent < due and self._waiting < WAITING_MAX:
                        self._send(producer, f"k{sent % KEYS:02}", round(time.time() * 1000))
                        sent += 1
                    self._stop.wait(_TURN_S)
        except BaseException as error:
            self.error = error
            raise

    def _send(self, producer: Producer[Any, Any], key: str, at_ms: int) -> None:
        row = Row(key, self._next.get(key, 0), at_ms)
        self._next[key] = row.number + 1

        def on_delivery(_metadata: object, error: Exception | None) -> None:
            now = time.monotonic()
            with self._lock:
                self._waiting -= 1
                if error is not None:
                    self.uncertain.append((row, str(error)))
                    return
                self.acknowledged.append(row)
                self._stall_s = max(self._stall_s, now - self._last_s)
                self._last_s = now

        with self._lock:
            self._waiting += 1
        sent = producer.send(EVENTS, encode(row), key=key.encode())
        sent.add_callback(on_delivery)

    def close_windows(self, at_ms: int) -> None:
        """Writes one record of a later time, so that earlier windows are complete."""
        with Producer(self._bootstrap, delivery_timeout_ms=int(patient(DELIVERY_MS))) as producer:
            self._send(producer, CLOSING, at_ms)
