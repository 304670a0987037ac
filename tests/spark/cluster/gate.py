"""A gate at which tasks report and wait until the test releases them.

So a test knows, without guessing times, that a task is in the middle of its work and in which
executor. Once the gate is open, all tasks pass at once, including retried ones.
"""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable
from types import TracebackType
from typing import NamedTuple, Self

from penstock.testing.slowness import patient

HOST = "127.0.0.1"
_WAIT_S = 180.0


class Arrival(NamedTuple):
    executor_pid: int
    task: int
    attempt: int


class Gate:
    def __init__(self) -> None:
        self.arrivals: list[Arrival] = []
        self._server = socket.create_server((HOST, 0))
        self._held: list[socket.socket] = []
        self._changed = threading.Condition()
        self._is_open = False
        self._thread = threading.Thread(target=self._serve, name="gate")

    @property
    def address(self) -> tuple[str, int]:
        return HOST, self._server.getsockname()[1]

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.open()
        # Closing a server does not wake a thread that accepts; one more connection does.
        with socket.create_connection(self.address) as last:
            last.sendall(b"stop\n")
            self._thread.join(patient(_WAIT_S))
        self._server.close()

    def wait_for_executors(self, count: int, check: Callable[[], None]) -> dict[int, list[Arrival]]:
        """Returns the arrivals by executor, once `count` executors have reported. Calls `check`
        meanwhile, which raises if they no longer can."""
        with self._changed:
            for _ in range(int(patient(_WAIT_S))):
                if self._changed.wait_for(lambda: len(self._by_executor()) >= count, 1.0):
                    return self._by_executor()
                check()
            raise TimeoutError(f"of {count} executors came {self._by_executor()}")

    def open(self) -> None:
        with self._changed:
            self._is_open = True
            for guest in self._held:
                _dismiss(guest)
            self._held.clear()

    def _by_executor(self) -> dict[int, list[Arrival]]:
        found: dict[int, list[Arrival]] = {}
        for arrival in self.arrivals:
            found.setdefault(arrival.executor_pid, []).append(arrival)
        return found

    def _serve(self) -> None:
        while True:
            guest, _ = self._server.accept()
            with guest.makefile("rb") as stream:
                said = stream.readline()
            if said == b"stop\n":
                guest.close()
                return
            with self._changed:
                if said:
                    self.arrivals.append(Arrival(*json.loads(said)))
                if self._is_open:
                    _dismiss(guest)
                else:
                    self._held.append(guest)
                self._changed.notify_all()


def _dismiss(guest: socket.socket) -> None:
    try:
        guest.sendall(b"go\n")
    except OSError:
        pass  # The task was killed while it waited.
    finally:
        guest.close()
