"""A simulated run that uses real clocks, randomness, sockets, threads or files is stopped."""

from __future__ import annotations

import asyncio
import importlib
import logging
import os
import random
import secrets
import socket
import subprocess
import sys
import threading
import time
import uuid
from contextlib import suppress
from pathlib import Path

import pytest

from penstock.sim.sandbox import NotSimulated, sandbox
from penstock.sim.world import Unexpected, World, run_world
from penstock.sim.world_config import WorldConfig

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
def test_calls_that_leave_the_simulation_raise(line: str) -> None:
    with sandbox() as tripped, pytest.raises(NotSimulated):
        eval(line, MODULES)
    assert len(tripped) >= 1


def test_nothing_is_forbidden_outside_of_runs() -> None:
    """After a run nothing is forbidden; seeded generators, imports and logging never are."""
    with sandbox() as tripped:
        random.Random(1).random()
        logging.getLogger("tripwire").warning("stamped")
        import xml.dom.pulldom  # noqa: F401 - not loaded before

    assert tripped == []
    assert time.time() > 0
    assert len(os.urandom(4)) == 4
    with socket.socket():
        pass


def test_a_module_imported_in_a_run_is_not_compiled_into_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python writes that file at the first import, so the first run after a change would fail."""
    (tmp_path / "imported_in_a_run.py").write_text("ANSWER = 42")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    with sandbox() as tripped:
        module = importlib.import_module("imported_in_a_run")
    assert module.ANSWER == 42
    assert not tripped
    assert not (tmp_path / "__pycache__").exists()
    assert not sys.dont_write_bytecode


def test_other_threads_are_not_affected() -> None:
    """A progress bar may continue to draw."""
    seen: list[float] = []
    begin, over = threading.Event(), threading.Event()

    def work() -> None:
        begin.wait(120)
        seen.append(time.monotonic())
        over.set()

    thread = threading.Thread(target=work)
    thread.start()
    with sandbox():
        begin.set()
        assert over.wait(120)
    thread.join(120)
    assert len(seen) == 1


def test_a_forbidden_call_fails_the_run_even_if_the_exception_is_swallowed() -> None:
    """Code under test may catch the exception; the run fails anyway."""

    async def scenario(world: World) -> None:
        await asyncio.sleep(1)
        with suppress(Exception):
            time.time()

    outcome = run_world(1, scenario, WorldConfig(brokers=0))
    assert isinstance(outcome.error, Unexpected)
    assert "time.time was used" in str(outcome.error)
