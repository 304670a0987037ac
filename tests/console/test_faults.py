"""Tests a console whose cluster refuses requests or is slow to answer."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from cli.cluster_model import ClusterModel
from client.fake_broker import FakeBroker
from client.fake_model import Group, Model
from console.running import Answer, Browserless, eventually, running_console
from penstock import Producer
from penstock.client.environment import default_environment
from penstock.console import link as connecting
from penstock.console import messages as reading
from penstock.console.config import ConsoleConfig
from penstock.console.errors import NotReached
from penstock.console.filters import compile_filter
from penstock.console.jobs import Jobs
from penstock.console.link import Link
from penstock.console.messages import Messages, Query
from penstock.console.shown import Format
from penstock.testing.slowness import patient
from penstock.wire import messages
from penstock.wire.errors import ErrorCode
from penstock.wire.messages.base import Response

REFUSED = ErrorCode.UNKNOWN_SERVER_ERROR


# -- after a change --------------------------------------------------------------------------------


def refuse_surveys(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the model refuse all surveys of topics, groups and disks."""
    answers: dict[str, Response] = {
        "list_partition_reassignments": messages.ListPartitionReassignmentsResponse(
            error_code=REFUSED, error_message=None
        ),
        "list_groups": messages.ListGroupsResponse(error_code=REFUSED),
        "describe_log_dirs": messages.DescribeLogDirsResponse(error_code=REFUSED),
    }
    for name, answer in answers.items():
        monkeypatch.setattr(
            model, name, lambda request, version, answer=answer: answer, raising=False
        )


@pytest.fixture
def fake() -> Iterator[FakeBroker]:
    with FakeBroker() as started:
        yield started


def test_a_change_to_a_topic_or_group_succeeds_even_if_the_survey_after_it_fails(
    fake: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After each change, the console surveys all topics or groups."""
    refuse_surveys(fake.model, monkeypatch)
    fake.model.add_topic("read")
    fake.model.groups["readers"] = Group(offsets={("read", 0): 0})
    moves = [{"topic": "read", "partition": 0, "to": 0}]
    changes: list[tuple[str, object]] = [
        ("topic", {"name": "made", "partitions": 1, "replicas": 1}),
        ("partitions/made", {"total": 2}),
        ("delete/made", {"typed": "made"}),
        ("reset", {"group": "readers", "moves": moves}),
        ("delete-group", {"group": "readers", "typed": "readers"}),
    ]
    with running_console(fake.address) as url:
        visitor = Browserless(url)
        visitor.log_in()
        assert visitor.get("/api/topics").status != 200  # the survey itself reports the error
        for path, body in changes:
            answer = visitor.post(f"/api/change/{path}", body)
            assert answer.status == 200, (path, answer.body)
    assert "made" not in fake.model.topics
    assert not fake.model.groups


def test_a_change_to_a_broker_succeeds_even_if_the_survey_after_it_fails(
    fake: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After each change, the console surveys all disks or topics."""
    model = ClusterModel(fake, brokers=2)
    refuse_surveys(model, monkeypatch)
    model.topic_partition("orders", [0, 1])
    with running_console(fake.address) as url:
        visitor = Browserless(url)
        visitor.log_in()

        def undrained() -> Answer | None:
            answer = visitor.post("/api/change/undrain", {"broker": 1})
            # the console does not know the brokers yet
            return None if answer.status == 400 else answer

        answer = eventually(undrained)
        assert answer.status == 200, answer.body
        answer = visitor.post("/api/change/elect", {})
        assert answer.status == 200, answer.body
    assert model.changed.elections


# -- slow messages ---------------------------------------------------------------------------------


def test_a_page_that_timed_out_loses_no_message(
    fake: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A leader stops answering while the newest messages are read. The page does not claim to be
    complete, and later pages have every message once."""
    monkeypatch.setattr(reading, "_SILENCE_S", 1.0)
    fake.model.add_topic("slow", 2)
    with Producer(fake.address) as producer:
        for number in range(10):
            for partition in range(2):
                producer.send("slow", b"%d" % number, partition=partition).result(patient(120))
    fetch = fake.model._fetch
    stalled = True

    def stalling(request: messages.FetchRequest) -> messages.FetchResponse:
        answer = fetch(request)
        wanted = {
            part.partition: part.fetch_offset for t in request.topics for part in t.partitions
        }
        for part in (part for topic in answer.responses for part in topic.partitions):
            if stalled and part.partition_index == 0:
                at = wanted[0]
                batches = fake.model.topics["slow"].logs[0].batches[at:5]
                part.records = b"".join(bytes(each) for each in batches)
        return answer

    monkeypatch.setattr(fake.model, "_fetch", stalling)

    async def look() -> list[dict[str, Any]]:
        nonlocal stalled
        link = Link(ConsoleConfig(bootstrap=fake.address), default_environment(), {})
        looking = Messages(link, Jobs(lambda: None))
        pages: list[dict[str, Any]] = []
        cursor = None
        try:
            while not pages or not pages[-1]["at_end"]:
                assert len(pages) < 50
                query = Query(None, "newest", 0, 100, compile_filter(""), False, Format(), cursor)
                pages.append(await looking.browse("slow", query))
                cursor = {int(part): at for part, at in pages[-1]["cursor"].items()}
                stalled = False
        finally:
            await link.close()
        return pages

    pages = asyncio.run(look())
    assert len(pages) > 1
    seen = [(each["partition"], each["offset"]) for page in pages for each in page["records"]]
    assert sorted(seen) == [(part, offset) for part in range(2) for offset in range(10)]


def test_a_broker_that_does_not_say_what_may_be_read_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As such, and not as an internal error of the console."""
    monkeypatch.setattr(connecting, "_LOOK_MS", 50)

    async def main() -> None:
        held: list[asyncio.StreamWriter] = []
        silent = await asyncio.start_server(lambda _, writer: held.append(writer), "127.0.0.1", 0)
        port = silent.sockets[0].getsockname()[1]
        link = Link(ConsoleConfig(bootstrap=f"127.0.0.1:{port}"), default_environment(), {})
        try:
            with pytest.raises(NotReached, match="the broker did not answer in time"):
                await link.readable(["orders"])
        finally:
            await link.close()
            for writer in held:
                writer.close()
            silent.close()

    asyncio.run(main())
