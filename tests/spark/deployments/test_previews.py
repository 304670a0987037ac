"""Tests previews of tables: encryption, and a worker's answers on a real broker."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from penstock.aio import Consumer, Producer
from penstock.client.environment import default_environment
from penstock.runtime import SystemClock, SystemRandom
from penstock.spark.deployments import preview_server, topics
from penstock.spark.deployments.model import decode, encode
from penstock.spark.deployments.preview_server import (
    AT_A_TIME_MAX,
    BUSY,
    PreviewDesk,
    PreviewServer,
)
from penstock.spark.deployments.previews import (
    Asking,
    Preview,
    PreviewAnswer,
    PreviewRequest,
    refused,
    sealed,
    table_named,
)
from penstock.testing import Broker
from penstock.testing.slowness import patient
from penstock.topic_partition import TopicPartition

RANDOM = SystemRandom().bytes
PREVIEW = Preview([["user", "string"]], [["ann"], [None]])
WAIT_S = 120.0


def test_only_the_client_that_asked_can_read_the_answer() -> None:
    asking, other = Asking(RANDOM), Asking(RANDOM)
    request = asking.request("views", "table:clicks", 1)
    answer = sealed(request, PREVIEW, 2, RANDOM)
    assert answer is not None and b"ann" not in encode(answer)
    assert asking.opened(answer) == PREVIEW
    assert other.opened(answer) is None
    assert other.opened(replace(answer, id=other.id)) is None
    assert asking.opened(replace(answer, sealed="AAAA")) is None


def test_a_request_with_a_wrong_key_is_not_answered() -> None:
    request = Asking(RANDOM).request("views", "table:clicks", 1)
    for key in ("", "AAAA", "not base64", "A" * 1_000):
        assert sealed(replace(request, key=key), PREVIEW, 2, RANDOM) is None


def test_keys_are_not_printed() -> None:
    request = Asking(RANDOM).request("views", "table:clicks", 1)
    assert request.key not in repr(request)


def test_only_tables_of_the_graph_have_rows() -> None:
    graph = {
        "nodes": [
            {"id": "table:clicks", "kind": "table", "name": "clicks"},
            {"id": "view:v", "kind": "view", "name": "v"},
        ]
    }
    assert table_named(graph, "table:clicks") == "clicks"
    assert table_named(graph, "view:v") == table_named(graph, "table:secret") == ""
    assert table_named({}, "table:clicks") == ""


def asked_for(node: str, *topics: str) -> PreviewRequest:
    return Asking(RANDOM).request("views", node, 1, topics)


def test_a_worker_gives_no_rows_of_topics_that_the_client_did_not_check() -> None:
    """As when another version was deployed after the console had looked."""
    nodes = [
        {"id": "topic:clicks", "kind": "topic", "name": "clicks"},
        {"id": "topic:salaries", "kind": "topic", "name": "salaries"},
        {"id": "table:clicks", "kind": "table", "name": "clicks"},
        {"id": "table:joined", "kind": "table", "name": "joined"},
    ]
    graph = {
        "nodes": nodes,
        "edges": [
            {"from": "topic:clicks", "to": "table:clicks"},
            {"from": "table:clicks", "to": "table:joined"},
            {"from": "topic:salaries", "to": "table:joined"},
        ],
    }
    assert refused(graph, asked_for("table:clicks", "clicks")) == ""
    assert refused(graph, asked_for("table:joined", "clicks", "salaries")) == ""
    assert "topics for which the console did not check" in refused(
        graph, asked_for("table:joined", "clicks")
    )
    assert "topics for which the console did not check" in refused(graph, asked_for("table:clicks"))
    assert "is not a table" in refused(graph, asked_for("topic:clicks", "clicks"))
    assert "is not a table" in refused({}, asked_for("table:clicks", "clicks"))
    pattern = {"id": "pattern:.*", "kind": "pattern", "name": ".*"}
    edge = {"from": "pattern:.*", "to": "table:clicks"}
    unknown = {"nodes": [*nodes, pattern], "edges": [*graph["edges"], edge]}
    assert "cannot check who may see" in refused(unknown, asked_for("table:clicks", "clicks"))
    dangling = {"nodes": nodes, "edges": [{"from": "topic:gone", "to": "table:clicks"}]}
    assert "cannot check who may see" in refused(dangling, asked_for("table:clicks", "clicks"))


def test_a_driver_answers_or_ends() -> None:
    async def main() -> None:
        desk = PreviewDesk()
        request = Asking(RANDOM).request("views", "table:clicks", 1)
        sent: asyncio.Queue[object] = asyncio.Queue()
        asked = asyncio.create_task(desk.ask(sent.put_nowait, request, "clicks"))
        await sent.get()
        desk.answer({"event": "preview", "id": "another", "rows": []})
        desk.answer({"id": request.id, "columns": [["user", "string"]], "rows": [["ann"], [None]]})
        assert await asked == PREVIEW
        ended = asyncio.create_task(desk.ask(sent.put_nowait, request, "clicks"))
        await sent.get()
        desk.close("it has ended")
        assert (await ended).error == "it has ended"

    asyncio.run(main())


class Client:
    """Asks a server on a real broker, as the console does."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._clock = SystemClock()

    async def serve(
        self,
        ask: Callable[[PreviewRequest], Awaitable[Preview] | None],
        main: Callable[[], Awaitable[None]],
    ) -> None:
        server = PreviewServer(self._broker.bootstrap, default_environment(), ask)
        running = asyncio.create_task(server.run())
        try:
            async with asyncio.timeout(patient(WAIT_S)):
                await main()
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    async def answers(self, count: int, age_ms: int = 0) -> list[Preview]:
        """Returns the first answers.

        It asks again until they are there, because the server reads from the end of the topic.
        """
        place = TopicPartition(topics.PREVIEWS, 0)
        found: list[Preview] = []
        asked: list[Asking] = []
        async with (
            Producer(self._broker.bootstrap) as producer,
            Consumer(self._broker.bootstrap, auto_offset_reset="earliest") as consumer,
        ):
            consumer.assign([place])
            while len(found) < count:
                asking = Asking(RANDOM)
                asked.append(asking)
                at_ms = self._clock.wall_ms() - age_ms
                request = asking.request("views", "table:clicks", at_ms)
                key = topics.preview_request_key("views")
                await producer.send(topics.PREVIEWS, encode(request), key=key)
                for record in await consumer.poll(timeout_ms=500):
                    answer = decode(PreviewAnswer, record.value)
                    opened = [each.opened(answer) for each in asked] if answer else []
                    found += [each for each in opened if each is not None]
        return found[:count]


def test_a_worker_answers_for_its_own_pipelines(broker: Broker) -> None:
    """Old requests and those for pipelines of other workers get no answer from it."""
    client = Client(broker)
    seen: list[str] = []

    def ask(request: PreviewRequest) -> Awaitable[Preview] | None:
        seen.append(request.id)
        if len(seen) == 1:
            return None

        async def answer() -> Preview:
            return PREVIEW

        return answer()

    async def main() -> None:
        assert (await client.answers(1))[0] == PREVIEW

    asyncio.run(client.serve(ask, main))
    assert len(seen) >= 2


@pytest.fixture
def open_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers stay open until the test ends, however long that takes."""
    monkeypatch.setattr(preview_server, "ANSWER_S", 24 * 3_600.0)


@pytest.mark.usefixtures("open_answers")
def test_further_requests_are_refused_while_some_are_answered(broker: Broker) -> None:
    client = Client(broker)
    asked = 0

    def ask(request: PreviewRequest) -> Awaitable[Preview] | None:
        async def never() -> Preview:
            nonlocal asked
            asked += 1
            await asyncio.Event().wait()
            raise AssertionError

        return never()

    async def main() -> None:
        assert (await client.answers(1))[0].error == BUSY
        assert asked <= AT_A_TIME_MAX

    asyncio.run(client.serve(ask, main))


@pytest.mark.usefixtures("open_answers")
def test_a_busy_worker_does_not_answer_for_others(broker: Broker) -> None:
    """The console takes the first answer, which must be that of the worker with the pipeline."""
    client = Client(broker)
    others: list[str] = []
    asked = 0

    def ask(request: PreviewRequest) -> Awaitable[Preview] | None:
        if asked >= AT_A_TIME_MAX and len(others) < 2:
            others.append(request.id)
            return None

        async def never() -> Preview:
            nonlocal asked
            asked += 1
            await asyncio.Event().wait()
            raise AssertionError

        return never()

    async def main() -> None:
        (answer,) = await client.answers(1)
        assert answer.error == BUSY and len(others) == 2

    asyncio.run(client.serve(ask, main))
