"""Do thousands of TLS handshakes at once slow down a client that is connected?

A good client produces, fetches and requests metadata over one TLS connection, at a fixed pace:
alone, and while another process begins many handshakes at once. Each round measures both, one
directly after the other, so that other programs on the machine affect both. The second measurement
ends when `MOST` of the handshakes have a result, so that a few late ones do not hide the others.
`p99_ratio` is the median of the rounds. The handshakes come from several loopback addresses, and
then from one: a broker limits how many are under way and how many wait, in total and for each
address.

The process with the handshakes has a low priority (`crowd_nice`), because in production it would be
on other machines. Still, on few cores, or if other programs run, a part of what is measured is the
scheduler, which lets a program run for milliseconds before it lets another one go on.

`handshakes` counts them all: `completed`; `refused` were closed by the broker, because too many
waited or a handshake took too long; `unfinished` had no result before the deadline. `wait_p50_ms`
and `wait_p99_ms` are the times from the connection to the end of a completed handshake: how long
the limits delay it.

Run it from the project's root: `python -m benchmarks.handshakes --json`.
"""

from __future__ import annotations

import argparse
import json
import os
import select
import shutil
import socket
import ssl
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from benchmarks.hostile import percentiles, raise_file_limit, rounds
from benchmarks.scale import Client
from benchmarks.tls import Broker
from penstock.wire.messages import CreateTopicsRequest, CreateTopicsResponse

ADDRESSES: Final = 8
DEADLINE_S: Final = 60.0
"""Handshakes that have no result by then are counted as unfinished."""
STEP_S: Final = 0.1
MOST: Final = 0.9
ENDS: Final = ("completed", "refused", "unfinished")
CROWD_NICE: Final = 19
TARGET_RATIO: Final = 3.0


def client_side(authority: str) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=authority)


# The handshakes, in their own process


class Crowd:
    """Begins handshakes at once, and counts how they end."""

    def __init__(self, port: int, context: ssl.SSLContext, addresses: int) -> None:
        self._port = port
        self._context = context
        self._addresses = addresses
        self._poll = select.epoll()
        self._connecting: dict[int, tuple[socket.socket, float]] = {}
        self._open: dict[int, tuple[ssl.SSLSocket, float]] = {}
        self.ends: Counter[str] = Counter()
        self.waits: list[float] = []

    def run(self, count: int, on_most_ended: Callable[[], None]) -> None:
        for number in range(count):
            self._connect(f"127.0.0.{2 + number % self._addresses}")
        end = time.monotonic() + DEADLINE_S
        is_told = False
        while (self._open or self._connecting) and time.monotonic() < end:
            for number, _ in self._poll.poll(0.1):
                if number in self._connecting:
                    self._secure(number)
                if number in self._open:
                    self._advance(number)
            if not is_told and self.ends.total() >= MOST * count:
                on_most_ended()
                is_told = True
        if not is_told:
            on_most_ended()
        self.ends["unfinished"] = len(self._open) + len(self._connecting)
        for number in list(self._open):
            self._close(number)
        for sock, _ in self._connecting.values():
            sock.close()

    def report(self) -> dict[str, float]:
        told: dict[str, float] = {how: self.ends[how] for how in ENDS}
        waits = percentiles(self.waits) if self.waits else {}
        told.update((f"wait_{name}", waits[name]) for name in ("p50_ms", "p99_ms") if waits)
        return told

    def _connect(self, source: str) -> None:
        sock = socket.socket()
        sock.setblocking(False)
        sock.bind((source, 0))
        began = time.perf_counter()
        with suppress(BlockingIOError):
            sock.connect(("127.0.0.1", self._port))
        self._connecting[sock.fileno()] = sock, began
        self._poll.register(sock.fileno(), select.EPOLLOUT)

    def _secure(self, number: int) -> None:
        """Begins the handshake of a connection that is established."""
        sock, began = self._connecting.pop(number)
        if sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            self._poll.unregister(number)
            sock.close()
            self.ends["refused"] += 1
            return
        try:
            secured = self._context.wrap_socket(
                sock, server_hostname="127.0.0.1", do_handshake_on_connect=False
            )
        except OSError:  # the broker has closed the connection already
            self.ends["refused"] += 1
            return
        self._open[number] = secured, began

    def _advance(self, number: int) -> None:
        secured, began = self._open[number]
        try:
            secured.do_handshake()
        except ssl.SSLWantReadError:
            self._poll.modify(number, select.EPOLLIN)
        except ssl.SSLWantWriteError:
            self._poll.modify(number, select.EPOLLOUT)
        except OSError:  # which includes all errors of TLS
            self._end(number, "refused")
        else:
            self.waits.append(time.perf_counter() - began)
            self._end(number, "completed")

    def _end(self, number: int, how: str) -> None:
        self.ends[how] += 1
        self._close(number)

    def _close(self, number: int) -> None:
        self._poll.unregister(number)
        self._open.pop(number)[0].close()


def attack(port: int, authority: str, count: int, addresses: int) -> None:
    os.setpriority(os.PRIO_PROCESS, 0, CROWD_NICE)
    crowd = Crowd(port, client_side(authority), addresses)
    print("ready", flush=True)
    sys.stdin.readline()
    crowd.run(count, lambda: print("most", flush=True))
    print(json.dumps(crowd.report()), flush=True)


# The good client


def connect(broker: Broker) -> Client:
    client = Client(("127.0.0.1", broker.ports["TLS"]), client_side(str(broker.authority)))
    configs = [CreateTopicsRequest.Config("durability", "replicated")]
    request = CreateTopicsRequest([CreateTopicsRequest.Topic("good", 1, 1, [], configs)])
    made = client.ask(request, 7, CreateTopicsResponse)
    assert not any(topic.error_code for topic in made.topics), made
    return client


def measure_round(
    broker: Broker, client: Client, count: int, addresses: int, seconds: float
) -> dict[str, Any]:
    """Measures the client alone, and while handshakes are under way."""
    command = [sys.executable, "-m", "benchmarks.handshakes", "--attack", str(broker.ports["TLS"])]
    command += ["--authority", str(broker.authority), "--handshakes", str(count)]
    command += ["--addresses", str(addresses)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdout.readline()
        alone = list(rounds(client, seconds))
        process.stdin.write("begin\n")
        process.stdin.flush()
        crowded = list(rounds(client, STEP_S))
        while not select.select([process.stdout], [], [], 0)[0]:
            crowded += rounds(client, STEP_S)
        process.stdout.readline()  # "most"
        found = json.loads(process.stdout.readline())
    return {
        "alone": percentiles(alone),
        "crowded": percentiles(crowded),
        "crowded_requests": len(crowded),
        "p99_ratio": round(percentiles(crowded)["p99_ms"] / percentiles(alone)["p99_ms"], 2),
        "handshakes": found,
    }


def summary(found: Sequence[dict[str, Any]]) -> dict[str, Any]:
    middle = statistics.median(each["p99_ratio"] for each in found)
    return {"p99_ratio": middle, "rounds": list(found)}


def measure(handshakes: int, repeats: int, seconds: float) -> dict[str, Any]:
    folder = Path(tempfile.mkdtemp(prefix="penstock-handshakes-"))
    broker = Broker(folder)
    try:
        client = connect(broker)
        list(rounds(client, min(1.0, seconds)))
        found = {
            name: summary(
                [
                    measure_round(broker, client, handshakes, addresses, seconds)
                    for _ in range(repeats)
                ]
            )
            for name, addresses in (("many_addresses", ADDRESSES), ("one_address", 1))
        }
        client.close()
    finally:
        broker.close()
        shutil.rmtree(folder, ignore_errors=True)
    return {
        "handshakes": handshakes,
        "crowd_nice": CROWD_NICE,
        **found,
        "target_ratio": TARGET_RATIO,
        "met": all(each["p99_ratio"] <= TARGET_RATIO for each in found.values()),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object last")
    parser.add_argument("--smoke", action="store_true", help="few handshakes, only to see it run")
    parser.add_argument("--handshakes", type=int, default=2000, help="begun at once")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=5.0, help="of the client alone")
    parser.add_argument("--attack", type=int, metavar="PORT", help=argparse.SUPPRESS)
    parser.add_argument("--authority", help=argparse.SUPPRESS)
    parser.add_argument("--addresses", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    raise_file_limit()
    if options.attack:
        attack(options.attack, options.authority, options.handshakes, options.addresses)
        return
    if options.smoke:
        options.handshakes, options.rounds, options.seconds = 40, 1, 0.5
    found = measure(options.handshakes, options.rounds, options.seconds)
    for name, value in found.items():
        print(f"{name}: {value}")
    if options.json:
        print(json.dumps(found))


if __name__ == "__main__":
    main()
