"""The broker page: a plan for the whole cluster, carried out as a job with progress."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, Final

from penstock.client.administration import Admin
from penstock.client.errors import BrokerError
from penstock.client.model import TopicPartition
from penstock.console.errors import BadRequest
from penstock.console.jobs import Job, Jobs
from penstock.console.link import Link
from penstock.console.picture import Picture
from penstock.console.watch import Watch
from penstock.metadata.rebalance import NotEnoughBrokers, Placed, Plan, Step, plan
from penstock.ports import Clock
from penstock.wire.errors import ErrorCode

_AT_ONCE: Final = 20
_INTERVAL_S: Final = 0.3
_LOOKS: Final = 5
"""A move that is neither listed nor done so often in a row was cancelled by somebody."""


class Brokers:
    def __init__(self, link: Link, watch: Watch, jobs: Jobs) -> None:
        self._link = link
        self._watch = watch
        self._jobs = jobs

    @property
    def _picture(self) -> Picture:
        return self._watch.picture

    async def plan(self, drain: Sequence[int]) -> dict[str, Any]:
        """What rebalancing, or emptying these brokers, would do; nothing is changed."""
        planned = await self._planned(drain)
        return {
            "before": _loads(planned, "before"),
            "after": _loads(planned, "after"),
            "moves": [
                {
                    "topic": step.topic,
                    "partition": step.index,
                    "from": list(step.before),
                    "to": list(step.after),
                    "copied_bytes": step.copied_bytes,
                }
                for step in planned.steps
            ],
            "copies": planned.copies,
            "copied_bytes": planned.copied_bytes,
        }

    async def _planned(self, drain: Sequence[int]) -> Plan:
        await self._watch.look()
        await self._watch.survey_topics()
        await self._watch.survey_disks()
        picture = self._picture
        assert picture.info is not None, "look() has told"
        racks = {broker.id: broker.rack for broker in picture.info.brokers}
        unknown = [each for each in drain if each not in racks and each not in picture.missing]
        if unknown:
            raise BadRequest(f"there is no broker {unknown[0]}")
        placed = [
            Placed(
                *place,
                picture.moving[place].target if place in picture.moving else part.replicas,
                picture.sizes.get(place),
            )
            for place, part in picture.places()
        ]
        try:
            return plan(racks, placed, drain=drain, level=not drain)
        except NotEnoughBrokers as error:
            raise BadRequest(str(error)) from error

    async def rebalance(self, drain: Sequence[int]) -> dict[str, Any]:
        """Begin to carry out the plan of this moment."""
        title = f"drain broker {drain[0]}" if drain else "rebalance the cluster"
        admin = await self._link.changing(title)
        planned = await self._planned(drain)

        async def work(job: Job) -> str:
            job.total = len(planned.steps)
            refused = await _Moves(admin, planned.steps, self._link.env.clock, job).run()
            leads = [TopicPartition(step.topic, step.index) for step in planned.steps]
            if leads:
                await admin.elect_leaders(leads)
            await self._watch.survey_topics()
            if refused:
                return f"{job.done - len(refused)} moved, {len(refused)} not: {refused[0]}"
            return f"{len(planned.steps)} partitions are where they belong"

        return self._jobs.begin(title, work).as_dict()

    async def elect(self) -> dict[str, Any]:
        admin = await self._link.changing("elect preferred leaders")
        outcomes = await admin.elect_leaders()
        await self._watch.survey_topics()
        refused = [
            str(error)
            for error in outcomes.values()
            if error is not None and error.code != ErrorCode.ELECTION_NOT_NEEDED
        ]
        return {"elected": sum(error is None for error in outcomes.values()), "refused": refused}

    async def cancel_moves(self) -> dict[str, Any]:
        admin = await self._link.changing("cancel all moves")
        moving = await admin.list_partition_reassignments()
        if moving:
            await admin.alter_partition_reassignments(dict.fromkeys(moving))
        await self._watch.survey_topics()
        return {"cancelled": len(moving)}


def _loads(planned: Plan, which: str) -> dict[str, Any]:
    shape = planned.before if which == "before" else planned.after
    return {
        str(broker): {"replicas": load.replicas, "leads": load.leads, "size_bytes": load.size_bytes}
        for broker, load in shape.loads.items()
    }


class _Moves:
    """Some at a time, so that whoever stops it leaves few under way."""

    def __init__(self, admin: Admin, steps: Sequence[Step], clock: Clock, job: Job) -> None:
        self._admin = admin
        self._clock = clock
        self._job = job
        self._waiting = deque(steps)
        self._under_way: dict[TopicPartition, Step] = {}
        self._looks: dict[TopicPartition, int] = {}
        self._refused: list[str] = []

    async def run(self) -> list[str]:
        """What was refused or cancelled, in words."""
        while self._waiting or self._under_way:
            await self._begin()
            if self._under_way:
                await self._look()
            if self._under_way:
                await self._clock.sleep(_INTERVAL_S)
        return self._refused

    async def _begin(self) -> None:
        count = min(_AT_ONCE - len(self._under_way), len(self._waiting))
        steps = [self._waiting.popleft() for _ in range(count)]
        if not steps:
            return
        begun = {TopicPartition(step.topic, step.index): step for step in steps}
        answers = await self._admin.alter_partition_reassignments(
            {place: step.after for place, step in begun.items()}
        )
        for place, step in begun.items():
            refusal = answers.get(place)
            if refusal is None:
                self._under_way[place] = step
            else:
                self._end(str(refusal))

    async def _look(self) -> None:
        listed = await self._admin.list_partition_reassignments([*self._under_way])
        found = await self._admin.describe_topics(sorted({each.topic for each in self._under_way}))
        for place, step in [*self._under_way.items()]:
            topic = found[place.topic]
            parts = () if isinstance(topic, BrokerError) else topic.partitions
            if place in listed and parts:
                self._looks[place] = 0
                continue
            self._looks[place] = self._looks.get(place, 0) + 1
            if place.partition < len(parts) and parts[place.partition].replicas == step.after:
                self._end("")
            elif self._looks[place] >= _LOOKS:
                self._end(f"the move of {place} was cancelled")
            else:
                continue
            del self._under_way[place]

    def _end(self, refusal: str) -> None:
        self._job.advance(1)
        if refusal:
            self._refused.append(refusal)
