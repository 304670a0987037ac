"""A user with fifty busy connections does not take the share of one with a single connection.

The broker and the greedy clients are processes of their own. The test counts how many requests of
the greedy user the broker serves while it serves one of the modest user, with fair sharing and
without. A modest client that a busy machine runs late lets the greedy ones have more requests. So
the test counts several times. The smallest count with sharing has the least of such delays, and it
is compared with a usual count without sharing.
"""

from __future__ import annotations

import asyncio
import statistics
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from penstock.cli.broker_files import metrics_url
from penstock.runtime import SystemRandom
from penstock.testing.ask import ask
from penstock.testing.broker import Broker
from penstock.testing.ports import free_port
from penstock.testing.slowness import patient
from penstock.wire.messages import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)

from .greedy_clients import answer, log_in, metadata_frame

CONNECTIONS = 50
REQUESTS = 20
COUNTS = 15
PARTITIONS = 300
"""Many, so that a request of the greedy user costs the broker much more than the client."""
USERS = 'user_greedy="one" user_modest="two"'
LIMIT_S = 300.0


class Running:
    """A broker with a listener for the two users, and one for the test, which does not share."""

    def __init__(self, data: Path) -> None:
        self.port, self.plain = free_port(SystemRandom()), free_port(SystemRandom())
        self._data = str(data)
        settings = {
            "listeners": f"PLAINTEXT://127.0.0.1:{self.plain},LOGIN://127.0.0.1:{self.port}",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,LOGIN:SASL_PLAINTEXT",
            "inter.broker.listener.name": "PLAINTEXT",
            "listener.name.login.sasl.enabled.mechanisms": "PLAIN",
            "listener.name.login.plain.sasl.jaas.config": f"PlainLoginModule required {USERS};",
            "audit.enabled": "false",
            "metrics": "127.0.0.1:0",
        }
        self.broker = Broker(settings, data=self._data, port=self.plain)

    async def metrics(self) -> dict[str, float]:
        """Returns the metrics of fair sharing, as Prometheus would see them."""
        text = await asyncio.to_thread(self._scrape)
        families = text_string_to_metric_families(text)
        samples = (sample for family in families for sample in family.samples)
        prefix = "penstock_fair_sharing_"
        return {
            each.name.removeprefix(prefix): each.value
            for each in samples
            if each.name.startswith(prefix)
        }

    async def until_sharing_is(self, active: float) -> None:
        while (await self.metrics())["active"] != active:
            pass

    def _scrape(self) -> str:
        url = metrics_url(self._data)
        with urllib.request.urlopen(f"{url}/metrics", timeout=patient(120)) as found:
            text: str = found.read().decode()
            return text

    async def share_fairly(self, is_fair: bool) -> None:
        text = "true" if is_fair else "false"
        config = IncrementalAlterConfigsRequest.Config("fair.sharing.enabled", 0, text)
        resource = IncrementalAlterConfigsRequest.Resource(4, "0", [config])
        request = IncrementalAlterConfigsRequest([resource])
        found = await asyncio.to_thread(
            ask, self.broker.bootstrap, request, IncrementalAlterConfigsResponse, 1, 120
        )
        assert found.responses[0].error_code == 0, found.responses[0].error_message


class Greedy:
    """The greedy clients: a process, which says how many requests were answered."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    async def answered(self) -> int:
        return int(await asyncio.to_thread(self._ask))

    def _ask(self) -> str:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return self._process.stdout.readline()


@contextmanager
def greedy_clients(port: int, topic: str) -> Iterator[Greedy]:
    command = [sys.executable, "-m", "broker.greedy_clients", str(port), str(CONNECTIONS)]
    with subprocess.Popen(
        [*command, "greedy", "one", topic],
        cwd=Path(__file__).resolve().parents[1],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield Greedy(process)
        finally:
            process.kill()


class Modest:
    """The modest user. It sends a request, waits for the answer, and sends the next one."""

    def __init__(self, port: int, frame: bytes) -> None:
        self._port = port
        self._frame = frame
        self._changed = asyncio.Condition()
        self.answered = 0

    async def run(self) -> None:
        reader, writer = await log_in(self._port, "modest", "two")
        try:
            while True:
                writer.write(self._frame)
                await answer(reader)
                async with self._changed:
                    self.answered += 1
                    self._changed.notify_all()
        finally:
            writer.close()

    async def counts(self, greedy: Greedy) -> list[float]:
        return [await self.greedy_per_request(greedy) for _ in range(COUNTS)]

    async def greedy_per_request(self, greedy: Greedy) -> float:
        """Returns how many requests of the greedy user are served for one of the modest user."""
        before, mine = await greedy.answered(), self.answered
        async with self._changed:
            await self._changed.wait_for(lambda: self.answered >= mine + REQUESTS)
        return (await greedy.answered() - before) / (self.answered - mine)


async def compare(running: Running, large: str, small: str) -> tuple[list[float], list[float]]:
    """Counts how many greedy requests there are for each modest one: with sharing and without."""
    modest = Modest(running.port, metadata_frame(small))
    with greedy_clients(running.port, large) as greedy:
        async with asyncio.timeout(patient(LIMIT_S)), asyncio.TaskGroup() as tasks:
            asking = tasks.create_task(modest.run())
            await running.until_sharing_is(1)
            fair = await modest.counts(greedy)
            found = await running.metrics()
            assert found["waits_total"] > 0
            await running.share_fairly(False)
            await running.until_sharing_is(0)
            unfair = await modest.counts(greedy)
            asking.cancel()
    return fair, unfair


def test_a_greedy_user_does_not_take_the_share_of_a_modest_one(tmp_path: Path) -> None:
    running = Running(tmp_path)
    with running.broker as broker:
        large, small = broker.new_topic(partitions=PARTITIONS), broker.new_topic()
        fair, unfair = asyncio.run(compare(running, large, small))
    print(f"greedy requests per modest request: {fair}, without sharing {unfair}")
    assert 3 * min(fair) < statistics.median(unfair)
