"""The broker page: plans a rebalance or drain, and carries it out as a job with progress."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from penstock.client.admin.cordons import cordon, uncordon
from penstock.client.admin.moves import Ended, Moves, braked, lift_throttle, total_work
from penstock.console.errors import BadRequest
from penstock.console.jobs import Job, Jobs
from penstock.console.link import Link
from penstock.console.picture import Picture
from penstock.console.watch import Watch
from penstock.metadata.rebalance import NotEnoughBrokers, Placed, Plan, plan
from penstock.wire.errors import ErrorCode

_log = logging.getLogger(__name__)


class Brokers:
    def __init__(self, link: Link, watch: Watch, jobs: Jobs) -> None:
        self._link = link
        self._watch = watch
        self._jobs = jobs

    @property
    def _picture(self) -> Picture:
        return self._watch.picture

    async def plan(self, drain: Sequence[int]) -> dict[str, Any]:
        """Returns the plan for a rebalance, or for draining these brokers. Changes nothing."""
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
        assert picture.info is not None, "look() sets it"
        racks = {broker.id: broker.rack for broker in picture.info.brokers}
        unknown = [each for each in drain if each not in racks and each not in picture.missing]
        if unknown:
            raise BadRequest(f"there is no broker {unknown[0]} in the cluster: reload the page")
        placed = [
            Placed(
                *topic_partition,
                picture.moving[topic_partition].target
                if topic_partition in picture.moving
                else part.replicas,
                picture.sizes.get(topic_partition),
            )
            for topic_partition, part in picture.topic_partitions()
        ]
        try:
            exclude = picture.cordoned - {*drain}
            return plan(racks, placed, drain=drain, exclude=exclude, level=not drain)
        except NotEnoughBrokers as error:
            raise BadRequest(str(error)) from error

    async def rebalance(self, drain: Sequence[int], throttle: int | None) -> dict[str, Any]:
        """Plans again and starts to carry out the plan.

        `throttle` is how many bytes each broker may copy per second, as for the command line. It is
        removed when all moves are done. If the job is stopped, it stays on the moves under way.
        """
        title = f"drain broker {drain[0]}" if drain else "rebalance the cluster"
        admin = await self._link.changing(title)
        planned = await self._planned(drain)

        async def work(job: Job) -> str:
            for broker in drain:
                if broker not in self._picture.missing:
                    await cordon(admin, broker)
            job.total = total_work(planned.steps)
            moves = Moves(admin, planned.steps, self._link.env.clock, None, lead=True)
            async with braked(admin, moves, throttle, self._link.env.clock, _log_eased):
                ended = await moves.run(job.advance)
            await self._watch.look_again(self._watch.survey_topics, self._watch.survey_disks)
            return _outcome(ended, len(planned.steps))

        return self._jobs.begin(title, work).as_dict()

    async def undrain(self, broker: int) -> dict[str, Any]:
        """Allows new partitions on the broker again. A rebalance moves replicas back to it."""
        admin = await self._link.changing(f"undrain broker {broker}")
        if self._picture.info is None or broker in self._picture.missing:
            raise BadRequest(f"broker {broker} is not running: start it first")
        was_drained = await uncordon(admin, broker)
        await self._watch.look_again(self._watch.survey_disks)
        return {"broker": broker, "was_drained": was_drained}

    async def elect(self) -> dict[str, Any]:
        admin = await self._link.changing("elect preferred leaders")
        outcomes = await admin.elect_leaders()
        await self._watch.look_again(self._watch.survey_topics)
        refused = [
            str(error)
            for error in outcomes.values()
            if error is not None and error.code != ErrorCode.ELECTION_NOT_NEEDED
        ]
        return {"elected": sum(error is None for error in outcomes.values()), "refused": refused}

    async def cancel_moves(self) -> dict[str, Any]:
        admin = await self._link.changing("cancel all moves")
        under_way = await admin.list_partition_reassignments()
        if under_way:
            await admin.alter_partition_reassignments(dict.fromkeys(under_way))
        await lift_throttle(admin)
        await self._watch.look_again(self._watch.survey_topics)
        return {"cancelled": len(under_way)}


def _log_eased(rate: int) -> None:
    _log.info("no progress for a while: raised the throttle to %d bytes/s per broker", rate)


def _outcome(ended: Ended, steps: int) -> str:
    trouble = [str(error) for error in (*ended.refused, *ended.unled)]
    trouble += [
        f"the move of {topic_partition} was cancelled" for topic_partition in ended.cancelled
    ]
    if not trouble:
        return f"{steps} partitions moved"
    return f"{len(ended.done)} of {steps} moved; {trouble[0]}"


def _loads(planned: Plan, which: str) -> dict[str, Any]:
    shape = planned.before if which == "before" else planned.after
    return {
        str(broker): {"replicas": load.replicas, "leads": load.leads, "size_bytes": load.size_bytes}
        for broker, load in shape.loads.items()
    }
