"""The network state of a simulated machine: its address, its connections and its listeners."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from penstock.ports import Receiver
from penstock.sim.network.stream import FIN, RESET, SimTransport, Stream
from penstock.sim.process import Process

_FIRST_PORT: Final = 40_000


class Machine:
    """The network state of a machine's operating system. It outlives the machine's processes."""

    def __init__(self, name: str, host: str) -> None:
        self.name = name
        self.host = host
        self.ends: dict[SimTransport, None] = {}
        self.listeners: dict[int, tuple[Process, Callable[[], Receiver]]] = {}
        self.powered = True
        self.read_bytes_per_s: float | None = None
        self._next_port = _FIRST_PORT
        self._unanswered: dict[Stream, None] = {}

    def port(self) -> int:
        self._next_port += 1
        return self._next_port

    def on_killed(self, process: Process) -> None:
        """Closes the connections of a process, with a reset where bytes were left unread."""
        self._drop_listeners(process)
        for end in [end for end in self.ends if end.process is process]:
            end.vanish()
            end.outgoing.end(RESET if end.incoming.has_unread else FIN)
            end.incoming.kick()

    def on_power_loss(self, process: Process) -> None:
        self.powered = False
        self._drop_listeners(process)
        for end in list(self.ends):
            end.vanish()
            end.outgoing.cut_off()
            end.incoming.kick()

    def on_power(self) -> None:
        """Turns the machine on again. Peers that still send on old connections receive a reset."""
        self.powered = True
        unanswered, self._unanswered = self._unanswered, {}
        for stream in unanswered:
            self.refuse_bytes(stream)

    def refuse_bytes(self, stream: Stream) -> None:
        """Handles bytes for a connection that no longer exists here."""
        if self.powered:
            stream.refuse()
        else:
            self._unanswered[stream] = None

    def _drop_listeners(self, process: Process) -> None:
        for port in [port for port, (owner, _) in self.listeners.items() if owner is process]:
            del self.listeners[port]
