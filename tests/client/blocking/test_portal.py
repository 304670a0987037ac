"""Tests the thread behind a sync client: results, errors, interrupts, forks, shutdown."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from concurrent.futures import Future

import pytest

from penstock.client.blocking.caller_executor import CallerExecutor, CallerGone
from penstock.client.blocking.portal import Portal
from penstock.client.errors import Closed, RequestTimedOut
from penstock.runtime import SystemClock
from penstock.testing.slowness import patient

LIMIT_S = 50.0


@pytest.fixture
def portal() -> Iterator[Portal]:
    portal = Portal("a test", SystemClock())
    yield portal
    portal.stop()


def test_results_and_errors_are_returned_to_the_caller(portal: Portal) -> None:
    async def give(value: int) -> int:
        await asyncio.sleep(0)
        return value

    async def fail() -> None:
        raise KeyError("k")

    assert portal.call(give(7)) == 7
    with pytest.raises(KeyError):
        portal.call(fail())


def test_all_calls_run_on_one_loop(portal: Portal) -> None:
    """Calls from several threads run on one loop, which has its own thread."""

    async def where() -> tuple[int, int]:
        return id(asyncio.get_running_loop()), threading.get_ident()

    found: list[tuple[int, int]] = []
    threads = [
        threading.Thread(target=lambda: found.append(portal.call(where()))) for _ in range(5)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT_S)
    assert len(found) == 5
    assert len(set(found)) == 1
    assert found[0][1] not in {thread.ident for thread in threads}


def test_calls_work_inside_another_loop(portal: Portal) -> None:
    """A sync client may be used in async code, because its own loop runs in another thread."""

    async def outer() -> str:
        return portal.call(asyncio.sleep(0, "fine"))

    assert asyncio.run(outer()) == "fine"


def test_a_call_from_its_own_thread_is_refused(portal: Portal) -> None:
    """Such a call would wait for itself forever."""

    async def inner() -> None:
        with pytest.raises(RuntimeError, match="own callbacks"):
            portal.call(asyncio.sleep(0))

    portal.call(inner())


def test_a_blocked_loop_does_not_block_a_call_forever(
    portal: Portal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When a callback blocks the loop, a call with a timeout ends soon after the timeout."""
    monkeypatch.setattr("penstock.client.blocking.portal._GRACE_S", 0.1)
    monkeypatch.setattr("penstock.client.blocking.portal._WIND_UP_S", 0.1)
    gate = threading.Event()
    portal.tell(lambda: gate.wait(LIMIT_S))
    with pytest.raises(RequestTimedOut, match="blocking its event loop"):
        portal.call(asyncio.sleep(0), timeout_s=0.1)
    gate.set()


def test_stopping_ends_waiting_calls() -> None:
    """A call in progress when the portal stops raises `Closed`."""
    portal = Portal("a test", SystemClock())
    outcome: Future[BaseException] = Future()
    begun = threading.Event()

    async def wait() -> None:
        begun.set()
        await asyncio.Event().wait()

    def use() -> None:
        try:
            portal.call(wait())
        except BaseException as error:  # noqa: BLE001 - the error is the outcome
            outcome.set_result(error)

    thread = threading.Thread(target=use)
    thread.start()
    assert begun.wait(LIMIT_S)
    portal.stop()
    assert isinstance(outcome.result(LIMIT_S), Closed)
    thread.join(LIMIT_S)
    with pytest.raises(Closed):
        portal.call(asyncio.sleep(0))
    portal.stop()


def test_calls_run_on_the_calling_thread(portal: Portal) -> None:
    """Functions that the loop hands out run on the thread that made the call; their
    errors go back to the loop."""
    on_caller = CallerExecutor()

    async def work() -> tuple[int, str]:
        loop = asyncio.get_running_loop()
        ident = await loop.run_in_executor(on_caller, threading.get_ident)
        try:
            await loop.run_in_executor(on_caller, int, "x")
        except ValueError as error:
            return ident, str(error)
        return ident, ""

    ident, text = portal.call(work(), on_caller=on_caller)
    assert ident == threading.get_ident()
    assert "invalid literal" in text


def test_calls_run_at_once_if_no_thread_waits() -> None:
    """A client that is closed by the garbage collector has no calling thread."""
    assert CallerExecutor().submit(threading.get_ident).result(LIMIT_S) == threading.get_ident()


def test_an_interrupt_in_an_errand_ends_the_call(portal: Portal) -> None:
    """Ctrl-C in a handler is raised by the call, after the coroutine was
    canceled and has cleaned up."""
    on_caller = CallerExecutor()
    wound_up: list[str] = []

    def interrupt() -> None:
        raise KeyboardInterrupt

    async def work() -> None:
        loop = asyncio.get_running_loop()
        try:
            with pytest.raises(CallerGone):
                await loop.run_in_executor(on_caller, interrupt)
            await asyncio.Event().wait()
        finally:
            with pytest.raises(CallerGone):
                await loop.run_in_executor(on_caller, interrupt)
            wound_up.append("yes")

    with pytest.raises(KeyboardInterrupt):
        portal.call(work(), on_caller=on_caller)
    assert wound_up == ["yes"]
    assert portal.call(asyncio.sleep(0, "usable"), on_caller=on_caller) == "usable"


def test_ctrl_c_ends_a_wait_at_once(portal: Portal) -> None:
    """The coroutine that was waited for is canceled."""
    cancelled = threading.Event()

    async def wait() -> None:
        asyncio.get_running_loop().call_later(0.05, lambda: os.kill(os.getpid(), signal.SIGINT))
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    with pytest.raises(KeyboardInterrupt):
        portal.call(wait(), timeout_s=LIMIT_S)
    assert cancelled.is_set()


def run_script(text: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(text)],
        capture_output=True,
        text=True,
        timeout=patient(60),
        check=False,
    )


def test_the_interpreter_exits_with_an_open_portal() -> None:
    """The portal's thread never keeps a program from exiting, even if its loop is blocked."""
    done = run_script(
        """
        import asyncio, time
        from penstock.client.blocking.portal import Portal
        from penstock.runtime import SystemClock
        portal = Portal("a test", SystemClock())
        portal.tell(lambda: time.sleep(60))
        print("end")
        """
    )
    assert (done.stdout, done.returncode) == ("end\n", 0), done.stderr


def test_a_forked_child_gets_an_error() -> None:
    """The thread stays with the parent: calls in the child fail at once, the
    parent continues to work."""
    done = run_script(
        """
        import asyncio, os, warnings
        from penstock.client.blocking.portal import Portal
        from penstock.client.errors import Closed
        from penstock.runtime import SystemClock
        portal = Portal("a test", SystemClock())
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
        if not child:
            try:
                portal.call(asyncio.sleep(0))
            except Closed as error:
                assert "forked" in str(error)
                portal.stop()
                os._exit(7)
            os._exit(1)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), portal.call(asyncio.sleep(0, "fine")))
        portal.stop()
        """
    )
    assert done.stdout == "7 fine\n", done.stderr
