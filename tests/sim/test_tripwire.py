"""A simulated run that reaches for the real world is stopped."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import secrets
import socket
import subprocess
import threading
import time
import uuid
from contextlib import suppress

import pytest

from penstock.sim.tripwire import NotSimulated, tripwires
from penstock.sim.world import Unexpected, World, WorldConfig, run_world

MODULES = {
    module.__name__: module
    for module in (os, random, secrets, socket, subprocess, threading, time, uuid)
}


@pytest.mark.parametrize(
    "line",
    [
        "time.time()",
        "time.monotonic()",
        "time.perf_counter()",
        "time.sleep(0)",
        "random.random()",
        "random.choice([1])",
        "os.urandom(4)",
        "uuid.uuid4()",
        "secrets.token_bytes(4)",
        "random.SystemRandom().random()",
        "socket.socket()",
        "subprocess.run(['true'], check=True)",
        "threading.Thread(target=int).start()",
        "open('/tmp/penstock-tripwire', 'w')",
        "open('/etc/hostname')",
    ],
)
def test_the_real_world_is_out_of_reach(line: str) -> None:
    """Clocks, randomness, sockets, threads, processes and files raise."""
    with tripwires() as tripped, pytest.raises(NotSimulated):
        eval(line, MODULES)
    assert len(tripped) >= 1


def test_outside_of_runs_everything_is_as_before() -> None:
    """Also after a run; and seeded generators, imports and log records were never forbidden."""
    with tripwires() as tripped:
        random.Random(1).random()
        logging.getLogger("tripwire").warning("stamped")
        import xml.dom.pulldom  # noqa: F401 - not loaded before

    assert tripped == []
    assert time.time() > 0
    assert len(os.urandom(4)) == 4
    with socket.socket():
        pass


def test_other_threads_are_left_alone() -> None:
    """A progress bar may go on drawing."""
    seen: list[float] = []
    begin, over = threading.Event(), threading.Event()

    def work() -> None:
        begin.wait(120)
        seen.append(time.monotonic())
        over.set()

    thread = threading.Thread(target=work)
    thread.start()
    with tripwires():
        begin.set()
        assert over.wait(120)
    thread.join(120)
    assert len(seen) == 1


def test_what_is_tripped_is_the_outcome_although_it_was_swallowed() -> None:
    """Code under test catches exceptions; the run fails all the same."""

    async def scenario(world: World) -> None:
        await asyncio.sleep(1)
        with suppress(Exception):
            time.time()

    outcome = run_world(1, scenario, WorldConfig(brokers=0))
    assert isinstance(outcome.error, Unexpected)
    assert "time.time was used" in str(outcome.error)
