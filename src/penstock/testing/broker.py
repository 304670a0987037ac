"""Runs a real broker as a separate process, for tests.

The broker listens on a free port of this machine and stores its data in a temporary directory,
which is removed at the end. It is the broker that `penstock broker` runs. It can be stopped,
killed, frozen and started again; clients then find it at the same address with the same data. If
the process that started it ends for any reason, the broker's standard input closes and it stops.
"""

from __future__ import annotations

import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from penstock.runtime import SystemClock, SystemRandom
from penstock.testing.ask import ask
from penstock.testing.ports import free_port
from penstock.testing.slowness import patient
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import (
    CreateTopicsRequest,
    CreateTopicsResponse,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)

_HOST: Final = "127.0.0.1"
_READY: Final = "ready bootstrap="
_READY_S: Final = 60.0
_STOP_S: Final = 30.0
_ASK_S: Final = 30.0
_START_ATTEMPTS: Final = 3
_OUTPUT_LINES: Final = 100
_CREATE_TOPICS_VERSION: Final = 7
_FIND_COORDINATOR_VERSION: Final = 2
_PREPARE_S: Final = 30.0
_DEFAULTS: Final = {
    # By default Kafka waits three seconds for more members before a group's first rebalance.
    "group.initial.rebalance.delay.ms": "0",
    # Tests have few groups, and a first member waits until all partitions (Kafka: 50) are created.
    "offsets.topic.num.partitions": "4",
    # There is one broker. Kafka's default is three replicas.
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.replication.factor": "1",
    "audit.topic.replication.factor": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.num.partitions": "4",
    # Tests must also run on the nearly full disk of a laptop or a CI machine.
    "disk_reserve_bytes": str(64 << 20),
}


class BrokerFailed(Exception):
    """The broker did not start, stop or answer as expected. Start and stop errors show its log.

    Example:
        stopped = testing.Broker()
        try:
            print(stopped.pid)
        except testing.BrokerFailed as error:
            print(error)
        #> the broker is not running: call start()
    """


class Broker:
    """A real broker for tests, in a process of its own. Every Kafka client can use it.

    Use it in a `with` block, or call `start` and `close`. In pytest the fixture `penstock_broker`
    is one. `settings` are keys of a broker's config file, or names of Kafka's broker settings.
    `data` is a data directory that is kept; by default there is a temporary one. `port` is 0 for
    any free port.

    Example:
        with testing.Broker() as broker:
            topic = broker.new_topic(partitions=3)
            with Producer(broker.bootstrap) as producer:
                print(producer.partitions_for(topic))
        #> 3
    """

    def __init__(
        self, settings: Mapping[str, str] | None = None, *, data: str | None = None, port: int = 0
    ) -> None:
        self.settings = {**_DEFAULTS, **(settings or {})}
        self.bootstrap = ""
        """HOST:PORT for clients; empty until the broker has been started."""
        self._port = port
        self._data = data
        self._directory: Path | None = None
        self._process: subprocess.Popen[str] | None = None
        self._clock = SystemClock()
        self._random = SystemRandom()
        self._topics = 0
        self._run = self._random.bytes(4).hex()

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

    @property
    def running(self) -> bool:
        """Whether the broker's process is running."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """The process id of the running broker."""
        if self._process is None or not self.running:
            raise BrokerFailed("the broker is not running: call start()")
        return self._process.pid

    # -- starting and stopping ------------------------------------------------------------------

    def start(self) -> str:
        """Starts the broker, waits until clients can connect, and returns `bootstrap`.

        Does nothing if the broker is running.
        """
        if self.running:
            return self.bootstrap
        if self._directory is None:
            self._directory = Path(tempfile.mkdtemp(prefix="penstock-broker-"))
        for attempt in range(1, _START_ATTEMPTS + 1):
            port = self._port or free_port(self._random, _HOST)
            self._process = self._spawn(port)
            if self._wait_ready():
                is_first = not self.bootstrap
                self._port = port
                self.bootstrap = f"{_HOST}:{port}"
                if is_first:
                    self._prepare_groups()
                return self.bootstrap
            output = self._end()
            taken = "is in use: another broker may be running" in output and not self._port
            if not taken or attempt == _START_ATTEMPTS:
                break
        if not self.bootstrap:
            self._remove_directory()
        raise BrokerFailed(f"the broker was not ready within {_READY_S:g} s:\n{output}")

    def stop(self) -> None:
        """Stops the broker cleanly, with SIGTERM. Keeps the data."""
        if self._process is None or not self.running:
            return
        self.thaw()
        self._process.send_signal(signal.SIGTERM)
        try:
            code = self._process.wait(patient(_STOP_S))
        except subprocess.TimeoutExpired:
            raise BrokerFailed(
                f"the broker did not stop within {_STOP_S:g} s:\n{self._end()}"
            ) from None
        output = self._end()
        if code != 0:
            raise BrokerFailed(f"the broker stopped with exit code {code}:\n{output}")

    def kill(self) -> None:
        """Kills the broker with SIGKILL. Keeps the data."""
        if self._process is not None:
            self._end()

    def restart(self) -> None:
        """Stops the broker if it is running, and starts it on the same port with the same data."""
        self.stop()
        self.start()

    def freeze(self) -> None:
        """Suspends the process: connections stay open, but get no answers until `thaw`."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Resumes the process after `freeze`."""
        self._signal(signal.SIGCONT)

    def close(self) -> None:
        """Stops the broker and removes its temporary directory."""
        try:
            self.stop()
        finally:
            self.kill()
            self._remove_directory()

    def _remove_directory(self) -> None:
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)
            self._directory = None

    # -- topics, names, output ------------------------------------------------------------------

    def new_name(self, prefix: str = "topic") -> str:
        """Returns a unique name for a topic or a group."""
        self._topics += 1
        return f"{prefix}-{self._run}-{self._topics}"

    def new_topic(
        self,
        partitions: int = 1,
        *,
        name: str | None = None,
        configs: Mapping[str, str] | None = None,
    ) -> str:
        """Creates a topic and returns its name, which is generated unless given.

        Raises `BrokerFailed` if the broker refuses.
        """
        chosen = self.new_name() if name is None else name
        topic = CreateTopicsRequest.Topic(
            name=chosen,
            num_partitions=partitions,
            replication_factor=1,
            configs=[CreateTopicsRequest.Config(*pair) for pair in (configs or {}).items()],
        )
        limit_s = patient(_ASK_S)
        request = CreateTopicsRequest(topics=[topic], timeout_ms=int(limit_s * 1000))
        answer = ask(
            self.bootstrap, request, CreateTopicsResponse, _CREATE_TOPICS_VERSION, limit_s
        ).topics[0]
        if answer.error_code != ErrorCode.NONE:
            raise BrokerFailed(
                f"topic {chosen} could not be created: "
                f"{answer.error_message or ErrorCode(answer.error_code).message}"
            )
        return chosen

    def output(self) -> str:
        """Returns the last lines that the broker logged, including its earlier runs."""
        if self._directory is None:
            return ""
        path = self._directory / "output.log"
        text = path.read_text(errors="replace") if path.exists() else ""
        return "\n".join(text.splitlines()[-_OUTPUT_LINES:])

    # -- the process ----------------------------------------------------------------------------

    def _spawn(self, port: int) -> subprocess.Popen[str]:
        assert self._directory is not None
        data = self._data or str(self._directory / "data")
        # All settings are passed with --set, so the required config file is empty.
        command = [sys.executable, "-m", "penstock.cli.main", "broker", "--config", "/dev/null"]
        own = {"host": _HOST, "port": str(port), "data_dir": data}
        for key, value in {**own, **self.settings}.items():
            command += ["--set", f"{key}={value}"]
        with (self._directory / "output.log").open("ab") as output:
            return subprocess.Popen(  # noqa: S603 -- our own program, our own words
                [*command, "--stop-with-stdin"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                text=True,
                # Ctrl-C must reach only the test runner, which then stops the broker.
                start_new_session=True,
            )

    def _wait_ready(self) -> bool:
        assert self._process is not None
        assert self._process.stdout is not None
        end = self._clock.monotonic() + patient(_READY_S)
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while (left_s := end - self._clock.monotonic()) > 0:
                if selector.select(left_s):
                    line = self._process.stdout.readline()
                    if not line or line.startswith(_READY):
                        return bool(line)
        return False

    def _prepare_groups(self) -> None:
        """Creates the offsets topic: clients that find no coordinator sleep for a second."""
        end = self._clock.monotonic() + patient(_PREPARE_S)
        code = ErrorCode.COORDINATOR_NOT_AVAILABLE
        while code != ErrorCode.NONE and self._clock.monotonic() < end:
            request = FindCoordinatorRequest(key="penstock-testing")
            answer = ask(
                self.bootstrap,
                request,
                FindCoordinatorResponse,
                _FIND_COORDINATOR_VERSION,
                patient(_ASK_S),
            )
            code = ErrorCode(answer.error_code)

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None and self.running:
            self._process.send_signal(number)

    def _end(self) -> str:
        """Kills the process if it is running, and returns its output."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()
        self._process = None
        return self.output()
