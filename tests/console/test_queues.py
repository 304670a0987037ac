"""The queues of a real broker, as the console shows them: numbers, jobs, dead letters, redrives.

Tests of selections and refusals write the letters themselves, and tell the console in which topic
they are. Another test has a group with the setting for dead letters.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from client.queues.test_dead_letters import set_letters, taken
from client.test_redrive import read
from console.running import Browserless, eventually, running_console
from penstock import Admin, Producer, Queue, aio
from penstock.client.environment import default_environment
from penstock.client.errors import BrokerError, Fenced
from penstock.client.redrive import Redrive, Redriven
from penstock.console.config import ConsoleConfig
from penstock.console.errors import BadRequest, ConsoleError, NotAllowed, NotFound, ReadOnly
from penstock.console.jobs import Jobs
from penstock.console.link import Link
from penstock.console.picture import Picture
from penstock.console.queues import Queues, Selection
from penstock.console.watch import Watch
from penstock.testing import Broker
from penstock.testing.slowness import patient
from penstock.wire.errors import ErrorCode


def limit_s() -> float:
    """How long to wait; longer while the machine is busy."""
    return patient(60.0)


ALL = Selection()


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as started:
        yield started


@pytest.fixture(scope="module")
def visitor(broker: Broker) -> Iterator[Browserless]:
    with running_console(broker.bootstrap) as url:
        found = Browserless(url)
        assert found.log_in().status == 200
        yield found


def row(visitor: Browserless, topic: str) -> dict[str, Any]:
    found = visitor.get(f"/api/queues?search={topic}").json["queues"]
    # The names of other topics may begin with this name.
    return next((each for each in found if each["group"] == topic), {})


def shown(visitor: Browserless, topic: str, **wanted: Any) -> dict[str, Any]:
    """Waits until the list shows this. The console asks for each of them at another time."""

    def is_shown() -> dict[str, Any] | None:
        found = row(visitor, topic)
        return found if found and all(found[key] == wanted[key] for key in wanted) else None

    found: dict[str, Any] = eventually(is_shown, limit_s())
    return found


def described(visitor: Browserless, topic: str) -> dict[str, Any]:
    answer = visitor.get(f"/api/queue?topic={topic}&group={topic}")
    assert answer.status == 200, answer.body
    found: dict[str, Any] = answer.json
    return found


def test_a_queue_from_its_first_job_to_its_last(broker: Broker, visitor: Browserless) -> None:
    """Numbers in the list and on the page, jobs that are not taken by looking, and charts."""
    topic = broker.new_topic(2)
    with Queue(broker.bootstrap, topic, client_id="resizer") as queue:
        assert queue.put_all([b"one", b"two", b"three"]) == 3
        first = queue.take(limit_s())
        assert first is not None
        # They are prefetched.
        found = shown(visitor, topic, group=topic, in_flight=3, depth=3, members=1)
        assert (found["redelivered"], found["letters_topic"]) == (0, "")
        assert found["oldest_ms"] > 0
        page = described(visitor, topic)
        assert sum(part["depth"] for part in page["partitions"]) == 3
        (member,) = page["group_members"]
        assert (member["client_id"], member["partitions"]) == ("resizer", [0, 1])

        looked = visitor.post("/api/read/jobs", {"topic": topic, "group": topic}).json
        assert looked["depth"] == 3
        assert {each["value"]["text"] for each in looked["jobs"]} == {"one", "two", "three"}
        one = visitor.post("/api/read/jobs", {"topic": topic, "group": topic, "limit": 1}).json
        assert len(one["jobs"]) == 1
        first.retry()
        shown(visitor, topic, redelivered=1)
        jobs = [queue.take(limit_s()) for _ in range(3)]
        assert sorted(job.attempt for job in jobs if job) == [1, 1, 2], "nobody has taken them"
        for job in jobs:
            assert job is not None
            job.done()
        shown(visitor, topic, depth=0)
    shown(visitor, topic, members=0, in_flight=0, oldest_ms=None, state="Empty")
    charts = visitor.get(f"/api/history?kind=queue&name={topic}/{topic}&range=300").json["figures"]
    assert {"not done", "in flight"} == charts["depth"]["lines"].keys()
    assert max(each or 0 for each in charts["depth"]["lines"]["not done"]) > 0
    assert max(each or 0 for each in charts["rates"]["lines"]["done"]) > 0


def test_jobs_without_workers_are_counted(broker: Broker, visitor: Browserless) -> None:
    """The state of the group is not in memory of the leader then."""
    topic = broker.new_topic(1)
    with Queue(broker.bootstrap, topic) as queue:
        queue.put(b"done")
        job = queue.take(limit_s())
        assert job is not None
        job.done()
    with Producer(broker.bootstrap) as producer:
        producer.send(topic, b"waits").result(timeout_s=limit_s())
    found = shown(visitor, topic, depth=1, in_flight=0, members=0, redelivered=None)
    assert found["oldest_ms"] > 0
    looked = visitor.post("/api/read/jobs", {"topic": topic, "group": topic}).json
    assert [each["value"]["text"] for each in looked["jobs"]] == ["waits"]


def test_share_groups_are_not_on_the_page_of_groups(broker: Broker, visitor: Browserless) -> None:
    topic = broker.new_topic(1)
    with Queue(broker.bootstrap, topic) as queue:
        queue.put(b"x")
        assert queue.take(limit_s()) is not None
        eventually(lambda: row(visitor, topic), limit_s())
        assert visitor.get(f"/api/groups?search={topic}").json["total"] == 0


def test_wrong_requests_are_explained(broker: Broker, visitor: Browserless) -> None:
    answer = visitor.get("/api/queue?topic=none&group=nobody")
    assert answer.status == 404
    assert "nobody has not read none" in answer.error
    assert visitor.get("/api/queue?topic=none").status == 400
    missing = visitor.post("/api/read/jobs", {"topic": "none", "group": "nobody"})
    assert missing.status == 404
    refused = visitor.post("/api/read/redrive", {"group": "nobody"})
    assert "has no dead-letter topic" in refused.error
    assert visitor.post("/api/read/redrive", {"group": "g", "limit": 0}).status == 400
    without_token = Browserless(visitor.url, visitor.cookie)
    assert without_token.post("/api/change/redrive", {"group": "g"}).status == 403


# -- dead letters -------------------------------------------------------------------------------


def test_a_rejected_job_is_sent_back_from_the_page_of_its_queue(
    broker: Broker, visitor: Browserless
) -> None:
    """The broker has written the letter, and the console has found it by the group's setting."""
    topic = broker.new_topic(1)
    with Admin(broker.bootstrap) as admin, Queue(broker.bootstrap, topic) as queue:
        set_letters(admin, topic)
        queue.put(b"cat.png")
        taken(queue).reject()
        shown(visitor, topic, letters=1)
        assert described(visitor, topic)["letters_topic"] == f"dlq.{topic}"
        plan = visitor.post("/api/read/redrive", {"group": topic}).json
        assert (plan["sent"], plan["without_copy"]) == ({topic: 1}, 0)
        assert plan["errors"] == [["A member of the group rejected the record.", 1]]
        begun = visitor.post("/api/change/redrive", {"group": topic})
        assert begun.status == 200, begun.body
        again = taken(queue)
        assert again.value == b"cat.png"
        again.done()
        eventually(lambda: visitor.post("/api/read/redrive", {"group": topic}).json["read"] == 0)
        shown(visitor, topic, depth=0)


class LinkWithLetters(Link):
    """A link to brokers whose groups have the setting for dead letters."""

    letters = ""

    async def dead_letter_topic(self, group: str) -> str:
        return self.letters


class Console:
    """The services of a console, without its web server."""

    def __init__(self, broker: Broker, letters: str, *, read_only: bool = False) -> None:
        config = ConsoleConfig(bootstrap=broker.bootstrap, read_only=read_only)
        self.link = LinkWithLetters(config, default_environment(), {})
        self.link.letters = letters
        watch = Watch(self.link, Picture(broker.bootstrap))
        self.jobs = Jobs(watch.tell)
        self.queues = Queues(self.link, watch, self.jobs)

    async def __aenter__(self) -> Console:
        self._running = asyncio.create_task(self.jobs.run())
        await asyncio.sleep(0)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._running.cancel()
        await asyncio.wait([self._running])
        await self.link.close()

    async def redriven(self, group: str, chosen: Selection = ALL) -> dict[str, Any]:
        """Redrives, and returns the job when it is over."""
        begun = await self.queues.redrive(group, chosen)
        async with asyncio.timeout(limit_s()):
            await self.jobs.all_done()
        return next(each for each in self.jobs.listed() if each["number"] == begun["number"])


def dead_letters(broker: Broker, topic: str, errors: list[str]) -> str:
    """Writes dead letters as a leader does it for a share group (KIP-1191)."""
    dead = broker.new_topic(1)
    with Producer(broker.bootstrap) as producer:
        for number, error in enumerate(errors):
            headers = {
                "__dlq.errors.topic": topic,
                "__dlq.errors.partition": "0",
                "__dlq.errors.offset": str(number),
                "__dlq.errors.group": topic,
                "__dlq.errors.delivery.count": "5",
                "__dlq.errors.message": error,
            }
            encoded = [(name, text.encode()) for name, text in headers.items()]
            producer.send(dead, b"job %d" % number, headers=encoded)
    return dead


async def worked_on(broker: Broker, topic: str) -> None:
    """Makes the topic a queue, whose group has the same name."""
    async with aio.Queue(broker.bootstrap, topic) as queue:
        await queue.put(b"first")
        job = await queue.take(limit_s())
        assert job is not None
        await job.done()


def test_dead_letters_are_counted_planned_and_sent_back_once(broker: Broker) -> None:
    """The plan changes nothing. Letters with other errors stay."""
    topic = broker.new_topic(1)
    dead = dead_letters(broker, topic, ["no space", "no space", "bad picture"])

    async def main() -> None:
        await worked_on(broker, topic)
        async with Console(broker, dead) as console:
            found = (await console.queues.listed(topic, 0, 10))["queues"][0]
            assert (found["letters_topic"], found["letters"]) == (dead, 3)
            chosen = Selection(error="no space")
            plan = await console.queues.plan_redrive(topic, chosen)
            assert (plan["topic"], plan["sent"], plan["left"]) == (dead, {topic: 2}, 1)
            assert plan["errors"] == [["no space", 2]]
            assert (await console.queues.plan_redrive(topic, chosen)) == plan, "it wrote something"
            limited = await console.queues.plan_redrive(topic, Selection(limit=1))
            assert limited["sent"] == {topic: 1}
            done = await console.redriven(topic, chosen)
            assert (done["state"], done["total"]) == ("done", 3), done
            assert done["note"] == f"sent 2 to {topic}; 1 left in {dead}"
            again = await console.redriven(topic, chosen)
            assert again["note"].startswith("sent nothing"), again

    asyncio.run(main())
    sent = [record.value for record in read(broker, topic)]
    assert sent == [b"first", b"job 0", b"job 1"]


def test_a_redrive_that_is_not_possible_is_explained(broker: Broker) -> None:
    topic = broker.new_topic(1)
    dead = dead_letters(broker, topic, ["no space"])

    async def main() -> None:
        async with Console(broker, dead) as console:
            with pytest.raises(BadRequest, match="other than the dead-letter topic"):
                await console.queues.plan_redrive(topic, Selection(to=dead))
            console.link.letters = ""
            with pytest.raises(NotFound, match="no dead-letter topic"):
                await console.queues.redrive(topic, Selection())
        async with Console(broker, dead, read_only=True) as console:
            assert (await console.queues.plan_redrive(topic, Selection()))["sent"] == {topic: 1}
            with pytest.raises(ReadOnly):
                await console.queues.redrive(topic, Selection())

    asyncio.run(main())
    with Admin(broker.bootstrap) as admin:
        assert f"redrive-{dead}" not in {each.group for each in admin.list_groups()}


@pytest.mark.parametrize(
    ("failure", "expected", "text"),
    [
        (
            BrokerError(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED),
            NotAllowed,
            "Write on the transactional id penstock-redrive-dead",
        ),
        (Fenced("by another"), ConsoleError, "another redrive of dead began meanwhile"),
    ],
    ids=["denied", "fenced"],
)
def test_the_refusal_of_a_broker_names_what_to_do(
    broker: Broker,
    monkeypatch: pytest.MonkeyPatch,
    failure: Exception,
    expected: type[ConsoleError],
    text: str,
) -> None:
    """In the plan, and in the note of the job."""

    async def refuse(*_: object) -> Redriven:
        raise failure

    monkeypatch.setattr(Redrive, "run", refuse)
    monkeypatch.setattr(Redrive, "preview", refuse)

    async def main() -> None:
        async with Console(broker, "dead") as console:
            if expected is NotAllowed:
                with pytest.raises(NotAllowed, match=text):
                    await console.queues.plan_redrive("g", Selection())
            done = await console.redriven("g")
            assert done["state"] == "failed"
            assert text in done["note"]

    asyncio.run(main())
