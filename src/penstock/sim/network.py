"""The network between simulated machines.

Every ordered pair of machines has its own link, so that a fault can be one-sided: A receives
from B and B does not receive from A. A blocked link delays everything (TCP retransmits until it
gets through) and loses nothing. A connect waits likewise, until its timeout. A machine without
power answers nothing. Once it is back, it answers old connections with a reset, as an operating
system does that does not know them. When a process dies on a running machine, the machine closes
its connections.

Delays are drawn per send, not per byte: everything that is written at one instant is one segment.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from dataclasses import dataclass
from math import log
from random import Random  # noqa: TID251 - only for the type: instances are seeded
from typing import Final

from penstock.ports import Listener, Receiver, Transport
from penstock.sim.loop import SimLoop
from penstock.sim.network_stream import FIN, RESET, SLOW_READ_BYTES, SimTransport, Stream
from penstock.sim.process import PROCESS, Process

_FIRST_PORT: Final = 40_000
_SYN_BYTES: Final = 60
BACKOFF_S_MAX: Final = 4.0
"""The longest pause between two attempts to retransmit."""


@dataclass(frozen=True, slots=True)
class NetworkConfig:
    delay_min_s: float = 0.0002
    delay_mean_s: float = 0.0008
    """The mean of the random part of the delay, on top of the minimum."""
    tail_chance: float = 0.005
    tail_s: float = 0.2
    """Occasionally a delay is up to this much longer."""
    cut_chance: float = 0.1
    """The chance that a read returns less than is available."""
    window_bytes: int = 256 << 10
    bandwidth_bytes_per_s: float | None = None


class Link:
    """One direction between two machines."""

    __slots__ = (
        "_blocked_at",
        "_busy_until",
        "_config",
        "_draws",
        "_loop",
        "bandwidth_bytes_per_s",
        "blocked",
        "clogged_until",
        "extra_s",
        "refused",
        "stalled",
    )

    def __init__(self, loop: SimLoop, config: NetworkConfig, draws: Random) -> None:
        self._loop = loop
        self._config = config
        self._draws = draws
        self._busy_until = 0.0
        self._blocked_at = 0.0
        self.blocked = False
        self.stalled: dict[Stream | _Connecting | _Acknowledgement, None] = {}
        self.heal()

    def heal(self) -> None:
        self.extra_s = 0.0
        self.clogged_until = 0.0
        self.refused = False
        self.bandwidth_bytes_per_s = self._config.bandwidth_bytes_per_s
        self.unblock()

    def block(self) -> None:
        if not self.blocked:
            self.blocked = True
            self._blocked_at = self._loop.now

    def unblock(self) -> None:
        """Lets everything through. Old connections retry less and less often, so their bytes
        come late."""
        self.blocked = False
        stalled, self.stalled = self.stalled, {}
        backoff_s = min(self._loop.now - self._blocked_at, BACKOFF_S_MAX)
        for each in stalled:
            each.resend(backoff_s * self._draws.random())

    def delay(self, size: int) -> float:
        config, draw = self._config, self._draws.random
        delay = config.delay_min_s - config.delay_mean_s * log(1.0 - draw()) + self.extra_s
        if draw() < config.tail_chance:
            delay += config.tail_s * draw()
        rate = self.bandwidth_bytes_per_s
        if rate is not None:
            now = self._loop.now
            self._busy_until = max(self._busy_until, now) + size / rate
            delay += self._busy_until - now
        return delay


class Machine:
    """The network state of a machine's operating system. It outlives the machine's processes."""

    def __init__(self, network: SimNetwork, name: str, host: str) -> None:
        self._network = network
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
            stream.forget()
            self._network.reset_end(stream.source, self)
        else:
            self._unanswered[stream] = None

    def _drop_listeners(self, process: Process) -> None:
        for port in [port for port, (owner, _) in self.listeners.items() if owner is process]:
            del self.listeners[port]


class SimNetwork:
    def __init__(self, loop: SimLoop, config: NetworkConfig, draws: Random) -> None:
        self.loop = loop
        self.config = config
        self._draws = draws
        self._links: dict[tuple[str, str], Link] = {}
        self.machines: dict[str, Machine] = {}
        """By host: the address to connect to."""

    def add_machine(self, name: str, host: str) -> Machine:
        machine = self.machines[host] = Machine(self, name, host)
        return machine

    def link(self, source: Machine, target: Machine) -> Link:
        key = (source.name, target.name)
        found = self._links.get(key)
        if found is None:
            found = self._links[key] = Link(self.loop, self.config, self._draws)
        return found

    def heal(self) -> None:
        """Resets every link to its configuration. Delayed bytes get through."""
        for link in self._links.values():
            link.heal()
        for machine in self.machines.values():
            machine.read_bytes_per_s = None

    def reset_between(self, one: Machine, other: Machine, chance: float, draws: Random) -> int:
        """Resets connections between two machines. Returns how many."""
        ends = [end for end in one.ends if end.outgoing.target.machine is other]
        chosen = [end for end in ends if chance >= 1.0 or draws.random() < chance]
        for end in chosen:
            peer = end.outgoing.target
            for each in (end, peer):
                each.incoming.forget()
                self.loop.call_soon(
                    each.lose,
                    ConnectionResetError(errno.ECONNRESET, "Connection reset by peer"),
                    context=each.process.context,
                )
        return len(chosen)

    def stall_between(
        self, source: Machine, target: Machine, seconds: float, chance: float, draws: Random
    ) -> int:
        """Delays the bytes of connections from one machine to another, while new connections
        get through. So bytes arrive long after their sender continued elsewhere. Returns how
        many connections."""
        ends = [end for end in source.ends if end.outgoing.target.machine is target]
        chosen = [end for end in ends if chance >= 1.0 or draws.random() < chance]
        for end in chosen:
            end.outgoing.hold_until(self.loop.now + seconds)
        return len(chosen)

    # Used by streams

    def mark(self, kind: str, target: SimTransport, size: int) -> None:
        self.loop.trace.mark(kind, target.process.index, size, target.process.name)

    def piece(self, size: int, machine: Machine) -> int:
        """Returns how many of the available bytes one read gives."""
        if machine.read_bytes_per_s is not None:
            size = min(size, SLOW_READ_BYTES)
        if size > 1 and self._draws.random() < self.config.cut_chance:
            return 1 + int(self._draws.random() * (size - 1))
        return size

    def acknowledge(self, stream: Stream) -> None:
        """Notifies the sender, over the reverse link, that the window has space."""
        back = self.link(stream.target.machine, stream.source.machine)
        _Acknowledgement(self.loop, back, stream.source).resend()

    def reset_end(self, end: SimTransport, machine: Machine) -> None:
        """Answers this end with a reset from a machine."""
        link = self.link(machine, end.machine)
        self.loop.call_later(
            link.delay(0),
            end.lose,
            ConnectionResetError(errno.ECONNRESET, "Connection reset by peer"),
            context=end.process.context,
        )


class _Acknowledgement:
    """A receiver's notification, in flight, that its window has space again."""

    __slots__ = ("_end", "_link", "_loop")

    def __init__(self, loop: SimLoop, link: Link, end: SimTransport) -> None:
        self._loop = loop
        self._link = link
        self._end = end

    def resend(self, pause_s: float = 0.0) -> None:
        link = self._link
        if link.blocked:
            link.stalled[self] = None
            return
        when = max(self._loop.now + pause_s + link.delay(0), link.clogged_until)
        self._loop.call_at(when, self._end.on_acknowledged, context=self._end.process.context)


class _Connecting:
    """A connect in progress."""

    def __init__(
        self,
        network: SimNetwork,
        source: Machine,
        target: Machine,
        port: int,
        receiver: Callable[[], Receiver],
        done: asyncio.Future[Transport],
        process: Process,
    ) -> None:
        self._network = network
        self._source = source
        self._target = target
        self._port = port
        self._receiver = receiver
        self._done = done
        self._process = process
        self._there = network.link(source, target)
        self._back = network.link(target, source)
        self._end: SimTransport | None = None

    def resend(self, pause_s: float = 0.0) -> None:
        """Sends what was delayed, or starts the connect."""
        loop = self._network.loop
        if self._end is None:
            delay_s = pause_s + self._there.delay(_SYN_BYTES)
            loop.call_later(delay_s, self._asked, context=loop.world.context)
        else:
            delay_s = pause_s + self._back.delay(_SYN_BYTES)
            loop.call_later(delay_s, self._answered, context=self._process.context)

    def _asked(self) -> None:
        """Handles the connect at the target."""
        target, loop = self._target, self._network.loop
        if self._there.blocked:
            self._there.stalled[self] = None
            return
        if self._there.clogged_until > loop.now:
            loop.call_at(self._there.clogged_until, self._asked, context=loop.world.context)
            return
        if not target.powered or self._process.dead or self._done.done():
            return
        listener = target.listeners.get(self._port)
        if listener is None or self._there.refused:
            loop.call_later(self._back.delay(0), self._refused, context=self._process.context)
            return
        process, receiver = listener
        here = (self._source.host, self._source.port())
        there = (target.host, self._port)
        window = self._network.config.window_bytes
        one = SimTransport(
            self._network, self._source, self._process, {"sockname": here, "peername": there}
        )
        other = SimTransport(self._network, target, process, {"sockname": there, "peername": here})
        to, back = (
            Stream(self._network, self._there, window),
            Stream(self._network, self._back, window),
        )
        one.join(back, to)
        other.join(to, back)
        self._end = one
        self._network.mark("accept", other, self._port)
        loop.call_soon(lambda: other.open(receiver()), context=process.context)
        self.resend()

    def _answered(self) -> None:
        """Handles the answer at the source, in the context of the connecting process."""
        if self._back.blocked:
            self._back.stalled[self] = None
            return
        end = self._end
        assert end is not None
        if self._done.done():
            end.abort()
        elif end.lost:
            self._done.set_exception(ConnectionResetError(errno.ECONNRESET, "reset at once"))
        else:
            end.open(self._receiver())
            self._done.set_result(end)

    def _refused(self) -> None:
        if not self._done.done():
            refusal = ConnectionRefusedError(
                errno.ECONNREFUSED, f"Connect to {self._target.host}:{self._port} was refused"
            )
            self._done.set_exception(refusal)


class _SimListener:
    def __init__(self, machine: Machine, port: int) -> None:
        self._machine = machine
        self._port = port

    def address(self) -> tuple[str, int]:
        return self._machine.host, self._port

    async def close(self) -> None:
        self._machine.listeners.pop(self._port, None)


class NodeNetwork:
    """The `Network` port of one machine."""

    def __init__(self, network: SimNetwork, machine: Machine) -> None:
        self._network = network
        self._machine = machine

    async def listen(self, host: str, port: int, receiver: Callable[[], Receiver]) -> Listener:
        machine = self._machine
        number = port or machine.port()
        if number in machine.listeners:
            raise OSError(errno.EADDRINUSE, f"{machine.host}:{number} is in use")
        machine.listeners[number] = (PROCESS.get(), receiver)
        return _SimListener(machine, number)

    async def connect(
        self, host: str, port: int, receiver: Callable[[], Receiver], timeout_s: float
    ) -> Transport:
        target = self._network.machines.get(host)
        if target is None:
            raise OSError(errno.EHOSTUNREACH, f"there is no machine {host} in this simulation")
        done: asyncio.Future[Transport] = asyncio.get_running_loop().create_future()
        process = PROCESS.get()
        connecting = _Connecting(
            self._network, self._machine, target, port, receiver, done, process
        )
        connecting.resend()
        async with asyncio.timeout(timeout_s):
            return await done
