"""Runs Debian's Chromium, driven by Playwright, with a real console and a real cluster of three."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol

import pytest

from console.fake_worker import FakeWorker, create_topics
from console.running import brokers, eventually, running_console
from penstock import Admin, Producer
from penstock.runtime import SystemClock
from penstock.spark.deployments import topics
from penstock.testing.ask import ask
from penstock.testing.broker import Broker
from penstock.testing.slowness import patient
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import MetadataRequest, MetadataResponse

CHROMIUM = shutil.which("chromium")
PATIENCE_MS = 60_000
METADATA_VERSION = 12
KEEP_TOASTS = """
  // A message stays, so that it is found however late a busy machine looks for it.
  const remove = Element.prototype.remove;
  Element.prototype.remove = function () {
    if (this.classList.contains("toast")) this.style.pointerEvents = "none";
    else remove.call(this);
  };
"""


@pytest.fixture(scope="package")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Broker]]:
    if CHROMIUM is None:
        pytest.skip("there is no chromium here: make tools, or apt-get install chromium")
    with brokers(tmp_path_factory.mktemp("cluster"), 3) as started:
        yield started


@pytest.fixture(scope="package")
def bootstrap(cluster: list[Broker]) -> str:
    return ",".join(broker.bootstrap for broker in cluster)


@pytest.fixture(scope="package")
def state_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The state directory in which the console looks for the user's pipelines."""
    return tmp_path_factory.mktemp("state")


@pytest.fixture(scope="package")
def url(bootstrap: str, state_home: Path) -> Iterator[str]:
    with running_console(bootstrap, environment={"XDG_STATE_HOME": str(state_home)}) as found:
        yield found


@pytest.fixture(scope="package")
def chromium(cluster: list[Broker]) -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(
            executable_path=CHROMIUM,
            args=["--no-sandbox", "--disable-dev-shm-usage"] if os.getuid() == 0 else [],
        )
        try:
            yield browser
        finally:
            browser.close()


@pytest.fixture
def page(chromium: Any, url: str) -> Iterator[Any]:
    """Opens a page of the console. An error in its scripts, or a violation of its content
    security policy, fails the test."""
    context = chromium.new_context(permissions=["clipboard-read", "clipboard-write"])
    context.add_init_script(KEEP_TOASTS)
    opened = context.new_page()
    opened.set_default_timeout(patient(PATIENCE_MS))
    wrong: list[str] = []
    opened.on("pageerror", lambda error: wrong.append(str(error)))
    opened.on("console", lambda message: note(message, wrong))
    opened.goto(url)
    opened.locator("#standing.good, #standing.warning, #standing.critical").wait_for()
    try:
        yield opened
        assert not wrong
    finally:
        context.close()


def note(message: Any, wrong: list[str]) -> None:
    # Some tests provoke refused requests; the page reports them itself.
    if message.type == "error" and "Failed to load resource" not in message.text:
        wrong.append(message.text)


def until_shown(
    page: Any, wanted: list[Any], work: Callable[[], object], pause_ms: int, what: str
) -> None:
    """Works until each of these was shown once. Figures that change are seldom all shown at once
    on a busy machine."""
    clock = SystemClock()
    end = clock.monotonic() + patient(60)
    while wanted := [each for each in wanted if not each.count()]:
        assert clock.monotonic() < end, f"{what}: {wanted}"
        work()
        page.wait_for_timeout(pause_ms)


class PatientAdmin(Admin):
    """Returns when every broker knows a topic that was created. The page of a topic asks one of
    them, which may learn of it a moment later, and asks only once."""

    brokers: Sequence[Broker] = ()

    def create_topic(self, name: str, *more: Any, **options: Any) -> Any:
        created = super().create_topic(name, *more, **options)
        asked = MetadataRequest([MetadataRequest.Topic(name=name)], False)
        for broker in self.brokers:

            def is_known(address: str = broker.bootstrap) -> bool:
                answer = ask(address, asked, MetadataResponse, METADATA_VERSION, patient(30))
                return answer.topics[0].error_code == ErrorCode.NONE

            eventually(is_known)
        return created


@pytest.fixture(scope="package")
def admin(bootstrap: str, cluster: list[Broker]) -> Iterator[Admin]:
    with PatientAdmin(bootstrap) as opened:
        opened.brokers = cluster
        yield opened


class Send(Protocol):
    """`send(topic, value, key=...)` sends a record and returns its offset."""

    def __call__(self, topic: str, *values: bytes | None, **how: Any) -> int: ...


@pytest.fixture(scope="package")
def send(bootstrap: str) -> Iterator[Send]:
    # From another thread, because Playwright runs an event loop in this one, which must not be
    # blocked.
    with Producer(bootstrap) as producer, ThreadPoolExecutor(1) as thread:

        def work(topic: str, values: tuple[bytes | None, ...], how: dict[str, Any]) -> int:
            sent = [producer.send(topic, value, **how) for value in values]
            return [delivery.result(timeout_s=patient(60)) for delivery in sent][-1].offset

        def run(topic: str, *values: bytes | None, **how: Any) -> int:
            return thread.submit(work, topic, values, how).result(patient(120))

        yield run


@pytest.fixture(scope="package")
def ready(admin: Admin) -> None:
    """The topics of deployed pipelines, and those in the graph of the fake worker."""
    create_topics(admin)
    for name in ("page-views", "long-views"):
        admin.create_topic(name, partitions=1)


@pytest.fixture
def worker(ready: None, send: Send, request: Any) -> Iterator[FakeWorker]:
    """A deployment of its own for each test."""
    name = re.sub("[^a-z]+", "-", request.node.name.lower())[5:40].strip("-")
    made = FakeWorker(send, name, f"worker-of-{name}")
    yield made
    send(topics.DEFINITIONS, None, key=topics.deployment_key(name))
    send(topics.STATUS, None, key=topics.status_key(name))
    send(topics.STATUS, None, key=topics.worker_key(made.worker))
