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
from random import Random  # noqa: TID251 - only for the type: instances are seeded
from typing import Final

from penstock.ports import Listener, Pace, Receiver, Transport
from penstock.sim.loop import SimLoop
from penstock.sim.network.link import Link, NetworkConfig
from penstock.sim.network.machine import Machine
from penstock.sim.network.stream import SimTransport, Stream
from penstock.sim.process import PROCESS, Process

_SYN_BYTES: Final = 60


class SimNetwork:
    def __init__(self, loop: SimLoop, config: NetworkConfig, draws: Random) -> None:
        self.loop = loop
        self.config = config
        self._draws = draws
        self._links: dict[tuple[str, str], Link] = {}
        self.machines: dict[str, Machine] = {}
        """By host: the address to connect to."""

    def add_machine(self, name: str, host: str) -> Machine:
        machine = self.machines[host] = Machine(name, host)
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
        one = SimTransport(loop, self._source, self._process, {"sockname": here, "peername": there})
        other = SimTransport(loop, target, process, {"sockname": there, "peername": here})
        to = Stream(loop, self._there, self._back)
        back = Stream(loop, self._back, self._there)
        one.join(back, to)
        other.join(to, back)
        self._end = one
        other.mark("accept", self._port)
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

    async def listen(
        self, host: str, port: int, receiver: Callable[[], Receiver], pace: Pace | None = None
    ) -> Listener:
        """Simulated clients connect too seldom for a `pace` to have an effect."""
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
