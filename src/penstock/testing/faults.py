"""Injects faults between a client and its brokers.

    with Broker() as broker, Faults(broker.bootstrap) as faults:
        producer = Producer(faults.bootstrap)
        faults.fail("Produce", "NOT_LEADER_OR_FOLLOWER", times=2)
        faults.delay(200, api="Fetch")
        faults.drop_connections()

`Faults` is a proxy that understands Kafka's protocol. It works with every client, and in front of
any broker without TLS and SASL. It runs on its own thread. Its methods can be called from any
thread, and have taken effect when they return.
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
from penstock.testing.slowness import patient
from penstock.wire.api import ApiKey
from penstock.wire.codec import RequestHeader

T = TypeVar("T")

_CALL_S: Final = 10.0
_REQUESTS_KEPT: Final = 100_000


class SeenRequest(NamedTuple):
    """A request that arrived at the proxy, refused or not."""

    api: str
    version: int
    client_id: str | None


class Faults:
    """A proxy that injects faults between clients and the brokers at `bootstrap`.

    Use it in a `with` block, or call `start` and `close`. Clients connect to `faults.bootstrap`. In
    pytest the fixture `penstock_faults` is one. An API is given by its name in Kafka's protocol,
    such as "Produce", or by its number. A fault without an API concerns all requests.

    Example:
        with testing.Faults("localhost:9092") as faults:
            faults.fail("Produce", "NOT_LEADER_OR_FOLLOWER", times=2)
            with Producer(faults.bootstrap) as producer:
                print(producer.send("orders", b"bread").result().offset)
            print(faults.count("Produce"))
        #> 3
        #> 3
    """

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
        """Resets all open connections, and returns their number."""

        async def drop(proxy: Proxy) -> int:
            return proxy.drop()

        return self._call(drop)

    def refuse_connections(self) -> None:
        """Refuses new connections, as if no broker listened. Open connections stay."""
        self._call(lambda proxy: proxy.refuse(True))

    def accept_connections(self) -> None:
        """Accepts connections again after `refuse_connections`."""
        self._call(lambda proxy: proxy.refuse(False))

    def delay(self, ms: float, *, api: str | int | None = None, times: int | None = None) -> None:
        """Delays answers: they arrive no sooner than `ms` after their requests.

        Concerns the next `times` requests, or all of them.
        """
        if ms < 0:
            raise ValueError(f"ms is {ms}: give 0 or more")
        self._add(Fault.DELAY, api, times, ms / 1000)

    def fail(self, api: str | int, error: str | int, *, times: int | None = 1) -> None:
        """Answers the next `times` requests with an error, given by its name or its code.

        The broker does not receive those that would change something. Raises `ValueError` for an
        API whose responses have no error code.
        """
        key = api_of(api)
        if not can_fail(key):
            raise ValueError(
                f"{key.api_name} cannot be made to fail, because its responses have no error code: "
                "use silence() or delay() instead, or another API"
            )
        self._add(Fault.FAIL, api, times, int(error_of(error)))

    def silence(self, *, api: str | int | None = None, times: int | None = None) -> None:
        """Withholds answers. The broker still processes the requests.

        A connection whose answer was withheld gets no further answers.
        """
        self._add(Fault.SILENCE, api, times, 0)

    def cut_after(self, size: int, *, api: str | int | None = None, times: int | None = 1) -> None:
        """Closes the connection after `size` bytes of the next answer.

        The four bytes of the answer's length count as well.
        """
        if size < 0:
            raise ValueError(f"size is {size}: give 0 or more bytes")
        self._add(Fault.CUT, api, times, size)

    def clear(self) -> None:
        """Removes all faults. Resets silenced connections, since they cannot recover."""
        with self._changed:
            self._script.clear()

        async def clear(proxy: Proxy) -> None:
            await proxy.refuse(False)
            proxy.drop(mute_only=True)

        self._call(clear)

    # -- requests seen --------------------------------------------------------------------------

    @property
    def requests(self) -> list[SeenRequest]:
        """The requests so far, oldest first: at most the last hundred thousand."""
        with self._changed:
            return list(self._seen)

    def count(self, api: str | int) -> int:
        """Returns the number of requests of this API so far."""
        name = api_of(api).api_name
        with self._changed:
            return self._counts[name]

    def wait_for(self, api: str | int, count: int = 1, *, timeout_s: float = 10.0) -> None:
        """Waits until `count` requests of this API have arrived since the start.

        Raises `TimeoutError` after `timeout_s`.
        """
        name = api_of(api).api_name
        with self._changed:
            if not self._changed.wait_for(lambda: self._counts[name] >= count, timeout_s):
                raise TimeoutError(
                    f"only {self._counts[name]} of {count} {name} requests arrived within "
                    f"{timeout_s:g} s"
                )

    def judge(self, header: RequestHeader) -> Verdict:
        """Decides what happens to a request. The proxy calls this."""
        name = _name(header.api_key)
        with self._changed:
            self._seen.append(SeenRequest(name, header.api_version, header.client_id))
            self._counts[name] += 1
            self._changed.notify_all()
            return self._script.verdict(header.api_key)

    def would_fail(self, api: int) -> bool:
        """Returns whether the next request of this API would fail. The proxy calls this."""
        with self._changed:
            return self._script.would_fail(api)

    def _add(self, fault: Fault, api: str | int | None, times: int | None, amount: float) -> None:
        key = None if api is None else api_of(api)
        with self._changed:
            self._script.add(Rule(fault, key, times, amount))

    # -- the thread -----------------------------------------------------------------------------

    def start(self) -> str:
        """Starts to listen, and returns `bootstrap`."""
        if self._thread is not None:
            return self.bootstrap
        ready = threading.Event()

        def work() -> None:
            try:
                asyncio.run(self._run(ready))
            except BaseException as error:  # noqa: BLE001 -- raised by `start` or `close`
                self._failure = error
            ready.set()

        self._thread = threading.Thread(target=work, daemon=True, name="penstock-faults")
        self._thread.start()
        if not ready.wait(patient(_CALL_S)) or self._failure is not None:
            raise OSError("the proxy could not listen") from self._failure
        return self.bootstrap

    def close(self) -> None:
        """Stops listening and closes all connections. Raises `RuntimeError` if the proxy failed."""
        if self._thread is None:
            return
        if self._loop is not None and self._stop is not None and self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop)
        self._thread.join(patient(_CALL_S))
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
            raise RuntimeError("the proxy is not running: call start(), or use it in a `with`")
        called = asyncio.run_coroutine_threadsafe(work(self._proxy), self._loop)
        return called.result(patient(_CALL_S))


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
