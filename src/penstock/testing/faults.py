"""Faults on the way between a client and its brokers, by script.

    with Broker() as broker, Faults(broker.bootstrap) as faults:
        producer = Producer(faults.bootstrap)
        faults.fail("Produce", "NOT_LEADER_OR_FOLLOWER", times=2)
        faults.delay(200, api="Fetch")
        faults.drop_connections()

It is a proxy that understands Kafka's protocol, so it works with every client and in front of any
broker without TLS and SASL. It runs on a thread of its own; all methods may be called from
anywhere and have taken effect when they return.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter, deque
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, Final, NamedTuple, Self, TypeVar

from penstock.runtime import SystemClock, SystemRandom
from penstock.testing.ports import free_port
from penstock.testing.proxy import HOST, BrokerAddress, Proxy
from penstock.testing.refusals import can_fail
from penstock.testing.script import Fault, Rule, Script, Verdict, api_of, error_of
from penstock.wire.api import ApiKey
from penstock.wire.codec import RequestHeader

T = TypeVar("T")

_CALL_S: Final = 10.0
_REQUESTS_KEPT: Final = 100_000


class SeenRequest(NamedTuple):
    """A request as it came to the proxy, refused or not."""

    api: str
    version: int
    client_id: str | None


class Faults:
    """Use as `with Faults(bootstrap) as faults`; clients connect to `faults.bootstrap`."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = ""
        """HOST:PORT,... for clients; empty until started."""
        self._brokers = [_address(part) for part in bootstrap.split(",") if part.strip()]
        self._script = Script()
        self._seen: deque[SeenRequest] = deque(maxlen=_REQUESTS_KEPT)
        self._counts: Counter[str] = Counter()
        self._changed = threading.Condition()
        self._random = SystemRandom()
        self._clock = SystemClock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._proxy: Proxy | None = None
        self._stop: Callable[[], None] | None = None
        self._thread: threading.Thread | None = None
        self._failure: BaseException | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    # -- faults ---------------------------------------------------------------------------------

    def drop_connections(self) -> int:
        """Reset every open connection, now; how many there were."""

        async def drop(proxy: Proxy) -> int:
            return proxy.drop()

        return self._call(drop)

    def refuse_connections(self) -> None:
        """As if no broker listened: open connections stay, new ones are refused."""
        self._call(lambda proxy: proxy.refuse(True))

    def accept_connections(self) -> None:
        self._call(lambda proxy: proxy.refuse(False))

    def delay(self, ms: float, *, api: str | int | None = None, times: int | None = None) -> None:
        """Answers come no sooner than `ms` after their requests."""
        if ms < 0:
            raise ValueError(f"ms is {ms}: give 0 or more")
        self._add(Fault.DELAY, api, times, ms / 1000)

    def fail(self, api: str | int, error: str | int, *, times: int | None = 1) -> None:
        """Answer the next requests with an error. The broker does not get to see those that would
        change something."""
        key = api_of(api)
        if not can_fail(key):
            raise ValueError(f"{key.api_name} cannot be made to fail: its answers hold no code")
        self._add(Fault.FAIL, api, times, int(error_of(error)))

    def silence(self, *, api: str | int | None = None, times: int | None = None) -> None:
        """The broker does what it is asked, and its answers never come: the connections that
        lost one hear nothing any more."""
        self._add(Fault.SILENCE, api, times, 0)

    def cut_after(self, size: int, *, api: str | int | None = None, times: int | None = 1) -> None:
        """Close the connection when so many bytes of the next answer have been sent. The answer's
        length, which comes before it, counts as four."""
        if size < 0:
            raise ValueError(f"size is {size}: give 0 or more bytes")
        self._add(Fault.CUT, api, times, size)

    def clear(self) -> None:
        """All is well again. Connections that were silenced are reset, as they are beyond help."""
        with self._changed:
            self._script.clear()

        async def clear(proxy: Proxy) -> None:
            await proxy.refuse(False)
            proxy.drop(mute_only=True)

        self._call(clear)

    # -- what came ------------------------------------------------------------------------------

    @property
    def requests(self) -> list[SeenRequest]:
        """The requests that came so far, oldest first; of very many the last hundred thousand."""
        with self._changed:
            return list(self._seen)

    def count(self, api: str | int) -> int:
        """How many requests of this API came so far."""
        name = api_of(api).api_name
        with self._changed:
            return self._counts[name]

    def wait_for(self, api: str | int, count: int = 1, *, timeout_s: float = 10.0) -> None:
        """Wait until so many requests of this API have come since the start."""
        name = api_of(api).api_name
        with self._changed:
            if not self._changed.wait_for(lambda: self._counts[name] >= count, timeout_s):
                raise TimeoutError(
                    f"{self._counts[name]} of {count} {name} requests came within {timeout_s:g} s"
                )

    def judge(self, header: RequestHeader) -> Verdict:
        name = _name(header.api_key)
        with self._changed:
            self._seen.append(SeenRequest(name, header.api_version, header.client_id))
            self._counts[name] += 1
            self._changed.notify_all()
            return self._script.verdict(header.api_key)

    def would_fail(self, api: int) -> bool:
        with self._changed:
            return self._script.would_fail(api)

    def _add(self, fault: Fault, api: str | int | None, times: int | None, amount: float) -> None:
        key = None if api is None else api_of(api)
        with self._changed:
            self._script.add(Rule(fault, key, times, amount))

    # -- its thread -----------------------------------------------------------------------------

    def start(self) -> str:
        """Listen; returns `bootstrap`."""
        if self._thread is not None:
            return self.bootstrap
        ready = threading.Event()

        def work() -> None:
            try:
                asyncio.run(self._run(ready))
            except BaseException as error:  # noqa: BLE001 -- told to whoever started or closes
                self._failure = error
            ready.set()

        self._thread = threading.Thread(target=work, daemon=True, name="penstock-faults")
        self._thread.start()
        if not ready.wait(_CALL_S) or self._failure is not None:
            raise OSError("the proxy could not listen") from self._failure
        return self.bootstrap

    def close(self) -> None:
        if self._thread is None:
            return
        if self._loop is not None and self._stop is not None and self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop)
        self._thread.join(_CALL_S)
        self._thread = self._loop = None
        if self._failure is not None:
            raise RuntimeError("the proxy failed before it was closed") from self._failure

    async def _run(self, ready: threading.Event) -> None:
        self._loop = asyncio.get_running_loop()
        stop = asyncio.Event()
        self._stop = stop.set
        proxy = self._proxy = Proxy(self, self._clock, lambda: free_port(self._random, HOST))

        async def announce() -> None:
            fronts = [await proxy.front(broker) for broker in self._brokers]
            self.bootstrap = ",".join(f"{front.host}:{front.port}" for front in fronts)
            ready.set()

        await proxy.run(stop, announce)

    def _call(self, work: Callable[[Proxy], Coroutine[Any, Any, T]]) -> T:
        if self._loop is None or self._proxy is None:
            raise RuntimeError("the proxy is not running: start() it, or use it in a `with`")
        return asyncio.run_coroutine_threadsafe(work(self._proxy), self._loop).result(_CALL_S)


def _address(text: str) -> BrokerAddress:
    host, colon, port = text.strip().rpartition(":")
    if not colon or not port.isdigit():
        raise ValueError(f"{text} is not an address: write HOST:PORT, such as localhost:9092")
    return BrokerAddress(host.strip("[]"), int(port))


def _name(api: int) -> str:
    try:
        return ApiKey(api).api_name
    except ValueError:
        return str(api)
