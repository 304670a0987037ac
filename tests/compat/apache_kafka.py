"""A real Apache Kafka (one KRaft node) in place of our broker, for the client's tests.

`ApacheKafka` is a `penstock.testing.Broker` that runs another program. It is started, stopped,
killed, frozen and asked for topics in the same way, so a test of our client need not know which of
the two it talks to. Maven downloads the jars into the user's cache. Without Java or Maven, tests
that need it are skipped with the reason.
"""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path

from compat.toolchain import HERE, java_class_path, tool
from penstock.testing import Broker
from penstock.testing.ask import ask
from penstock.testing.ports import free_port
from penstock.testing.slowness import patient
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import (
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
)

VERSION = "4.0.0"
SHARE_VERSION = "4.3.1"
"""A version whose share groups are ready for use, and on by default."""
CLUSTER_ID = "MkU3OEVBNTcwNTJENDM2Qg"
READY_S = 150.0
"""For a JVM on a busy machine; on a quiet one it takes four seconds."""

ASK_S = 50.0
LIST_OFFSETS_VERSION = 6
FIND_COORDINATOR_VERSION = 2
LATEST = -1
TRANSACTIONS = 1
"""The coordinator type of transactions."""

JVM = ("-Xmx512m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto")
SETTINGS = {
    "process.roles": "broker,controller",
    "node.id": "0",
    "controller.listener.names": "CONTROLLER",
    "num.network.threads": "2",
    "num.io.threads": "4",
    "num.recovery.threads.per.data.dir": "1",
    # One node cannot have more replicas, and tests do not need fifty partitions.
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "4",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "share.coordinator.state.topic.num.partitions": "4",
    "broker.heartbeat.interval.ms": "200",
    "group.initial.rebalance.delay.ms": "0",
    # Records of tests are years old; they must not expire during a test.
    "log.retention.ms": "-1",
    # The default takes a quarter of the small heap.
    "log.cleaner.dedupe.buffer.size": str(4 << 20),
}


class ApacheKafka(Broker):
    """Use as `with ApacheKafka() as kafka`; settings and features are those of Kafka."""

    def __init__(
        self,
        settings: Mapping[str, str] | None = None,
        features: Mapping[str, int] | None = None,
        version: str = VERSION,
    ) -> None:
        super().__init__()
        self.features = [f"{name}={level}" for name, level in (features or {}).items()]
        # A node that restarts is accepted when the session of its previous run has expired.
        session = {"broker.session.timeout.ms": f"{patient(2_000):.0f}"}
        self.settings = {**SETTINGS, **session, **(settings or {})}
        self.class_path = java_class_path(version, "kafka_2.13")
        self.java = tool("java", "install a JDK")
        tool("javac", "install a JDK: a JRE cannot run the program that starts Kafka")
        self._controller_port = free_port(self._random)

    def new_topic(
        self,
        partitions: int = 1,
        *,
        name: str | None = None,
        configs: Mapping[str, str] | None = None,
    ) -> str:
        """Creates a topic and waits for its leaders: Kafka answers before they are ready."""
        made = super().new_topic(partitions, name=name, configs=configs)
        asked = [ListOffsetsRequest.Partition(n, timestamp=LATEST) for n in range(partitions)]
        request = ListOffsetsRequest(topics=[ListOffsetsRequest.Topic(made, asked)])
        end = self._clock.monotonic() + patient(ASK_S)
        while self._clock.monotonic() < end:
            answer = ask(self.bootstrap, request, ListOffsetsResponse, LIST_OFFSETS_VERSION, ASK_S)
            found = answer.topics[0].partitions
            if all(each.error_code == ErrorCode.NONE for each in found):
                return made
        raise AssertionError(f"topic {made} got no leaders within {ASK_S:g} s")

    # -- the other program ----------------------------------------------------------------------

    def _spawn(self, port: int) -> subprocess.Popen[str]:
        assert self._directory is not None
        controller = f"127.0.0.1:{self._controller_port}"
        own = {
            "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://{controller}",
            "controller.quorum.voters": f"0@{controller}",
            "log.dirs": str(self._directory / "data"),
        }
        properties = self._directory / "server.properties"
        settings = {**own, **self.settings}
        properties.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        program = str(Path(HERE, "kafka_server", "Server.java"))
        with (self._directory / "output.log").open("ab") as output:
            return subprocess.Popen(
                [
                    *(self.java, *JVM, "-cp", self.class_path),
                    *(program, CLUSTER_ID, str(properties), *self.features),
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                text=True,
                start_new_session=True,
            )

    def _wait_ready(self) -> bool:
        assert self._process is not None
        end = self._clock.monotonic() + patient(READY_S)
        while not super()._wait_ready():
            if self._process.poll() is not None or self._clock.monotonic() > end:
                return False
        return True

    def _prepare_groups(self) -> None:
        """Waits for both coordinators: the first request for one creates its internal topic."""
        end = self._clock.monotonic() + patient(READY_S)
        for kind in (0, TRANSACTIONS):
            code = ErrorCode.COORDINATOR_NOT_AVAILABLE
            while code != ErrorCode.NONE and self._clock.monotonic() < end:
                request = FindCoordinatorRequest(key="penstock-testing", key_type=kind)
                code = ErrorCode(
                    ask(
                        self.bootstrap,
                        request,
                        FindCoordinatorResponse,
                        FIND_COORDINATOR_VERSION,
                        ASK_S,
                    ).error_code
                )
