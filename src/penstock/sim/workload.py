"""Runs one seed from start to verdict: the cluster, its clients, the faults, and the checks.

Phase A: load and faults, for as long as the scenario says. Phase B: all faults are healed, the
cluster recovers, and every partition is written to and read to its end. Then the history is
checked. The invariants are checked during the whole run, and a broken one ends the run at once,
because the step that broke it is where to look for the bug.
"""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial

from penstock.metadata.image import ClusterImage
from penstock.metadata.model import NO_LEADER
from penstock.sim.access_plan import (
    ACTOR_USERS,
    ADMIN,
    RIGHTS,
)
from penstock.sim.actors.client_processes import ClientProcesses, Plan
from penstock.sim.actors.compacted_table import check_table, run_table_writer
from penstock.sim.actors.copier import run_copier
from penstock.sim.actors.delay_reader import drain_delays
from penstock.sim.actors.group_plans import consumer_plans, delay_plans, share_plans
from penstock.sim.actors.guest import run_guest_member, run_guest_reader, run_guest_writer
from penstock.sim.actors.letter_reader import drain_letters
from penstock.sim.actors.malformed import run_malformer
from penstock.sim.actors.pipeline_worker import run_pipeline_worker
from penstock.sim.actors.pipelining import run_pipeliner
from penstock.sim.actors.producers import run_producer
from penstock.sim.actors.quota_admin import run_quota_admin
from penstock.sim.actors.readers import run_asker, run_member, run_reader
from penstock.sim.actors.rights_admin import run_rights_admin
from penstock.sim.actors.shared_state import Actor, SharedState
from penstock.sim.actors.sink import run_sink
from penstock.sim.actors.tenants import (
    run_tenant_mutator,
    run_tenant_reader,
    run_tenant_writer,
)
from penstock.sim.actors.token_bearer import run_token_bearer
from penstock.sim.actors.token_holder import run_token_holder
from penstock.sim.actors.topic_setup import create_topics
from penstock.sim.actors.transactional import run_transactor
from penstock.sim.actors.visitor import run_password_admin, run_visitor
from penstock.sim.checkers.access_probe import probe_access
from penstock.sim.checkers.consumer_groups import TrueConsumerGroups
from penstock.sim.checkers.consumer_probe import (
    AUDIT_EVERY_STEPS,
    CoordinatorAudit,
    probe_consumer_groups,
)
from penstock.sim.checkers.coordinator_log import CoordinatorLog
from penstock.sim.checkers.final_checks import (
    come_together,
    drain,
    probe_group,
    probe_joining,
    probe_producing,
)
from penstock.sim.checkers.history_checks import check_history
from penstock.sim.checkers.invariants import Invariants
from penstock.sim.checkers.logs import Violation
from penstock.sim.checkers.metadata_invariants import InvariantBroken
from penstock.sim.checkers.pipelines import probe_pipelines, removal_ms
from penstock.sim.checkers.quota_probe import probe_quotas
from penstock.sim.checkers.sealed_files import SealedNonces, SealedPeek, check_sealed
from penstock.sim.checkers.shadow_log import Peek
from penstock.sim.checkers.share_probe import LeaderAudit, leader_of, probe_shares
from penstock.sim.checkers.share_records import ShareRecords, logs_to_follow
from penstock.sim.checkers.share_states import TrueShareStates
from penstock.sim.checkers.state_watch import StateWatch
from penstock.sim.checkers.token_probe import probe_tokens
from penstock.sim.cluster_settings import world_config
from penstock.sim.failures import describe
from penstock.sim.faults.fault_schedule import FaultSchedule
from penstock.sim.history import History
from penstock.sim.node import BrokerNode, ClientNode
from penstock.sim.process import Process
from penstock.sim.quota_plan import (
    HASTY_WRITER,
    MUTATOR,
    NEIGHBOR,
    NO_STATE,
    READER,
    WRITER,
    QuotaState,
    limit_of,
)
from penstock.sim.scenario import Scenario
from penstock.sim.share_plan import letter_topic
from penstock.sim.timeline import Timeline, timeline_lines
from penstock.sim.world import Outcome, World, run_world


@dataclass(slots=True)
class Verdict:
    """The result of one seed."""

    scenario: Scenario
    violations: list[Violation] = field(default_factory=list)
    trouble: str = ""
    """What ended the run, if it was not a violation of a rule: one line, then the traceback."""
    trace_hash: str = ""
    steps: int = 0
    virtual_s: float = 0.0
    counters: dict[str, int] = field(default_factory=dict)
    history: History = field(default_factory=History)
    timeline: list[str] = field(default_factory=list)
    """After a failure: the events of the partition in question."""
    trace: list[str] = field(default_factory=list)

    @property
    def failed(self) -> bool:
        return bool(self.violations or self.trouble)

    @property
    def failure(self) -> str:
        """Returns the first failure in one line."""
        if self.violations:
            more = len(self.violations) - 1
            return f"{self.violations[0]}" + (f" (and {more} more)" if more else "")
        return self.trouble.partition("\n")[0][:300]


class _Run:
    """One run of a scenario in a world."""

    def __init__(self, scenario: Scenario) -> None:
        self.watch = StateWatch()
        self.nonces = SealedNonces()
        self.scenario = scenario
        self.history = History()
        self.shared: SharedState | None = None
        self.invariants: Invariants | None = None
        self.timeline: Timeline | None = None
        self.audit: CoordinatorAudit | None = None
        self.share_audit: LeaderAudit | None = None

    async def play(self, world: World) -> list[Violation]:
        """Runs load and faults, heals everything, probes the cluster, and checks the history."""
        shared = self.shared = SharedState(
            self.scenario, world.bootstrap, self.history, lambda: world.now, asyncio.Event()
        )
        consumers = TrueConsumerGroups(shared.consumers)
        shared.consumers.judge = consumers
        timeline = self.timeline = Timeline(lambda: world.now)
        shares = self._true_shares(world, shared)
        invariants = self._watch(world, shared, timeline, consumers, shares)
        await world.start_brokers()
        await _in_client(world.client("setup"), create_topics(world, shared))
        actors = self._start_actors(world, shared)
        faults = FaultSchedule(world, shared, invariants, timeline, actors)
        async with asyncio.TaskGroup() as tasks:
            trouble = tasks.create_task(faults.run())
            await world.sleep(self.scenario.load_s)
            shared.over.set()
            await trouble
        faults.heal()
        world.tell("all faults are removed")
        await come_together(world, shared, invariants)
        await probe_pipelines(world, shared)
        await probe_consumer_groups(world, shared, lambda: invariants.metadata.image, consumers)
        await probe_shares(world, shared, shares, partial(_committed_end, invariants))
        await actors.finish()
        self.history.entries += shared.pipelines.entries()
        # The clients may have left a transaction open at the end, which must time out first.
        await come_together(world, shared, invariants)
        for name, work in (
            ("probe-access", probe_access),
            ("probe-tokens", probe_tokens),
            ("probe-quotas", probe_quotas),
            ("probe", probe_producing),
            ("probe-offsets", probe_group),
            ("probe-joining", probe_joining),
            ("drain", drain),
            ("drain-committed", partial(drain, committed=True)),
            ("probe-table", check_table),
            ("drain-letters", drain_letters),
            ("drain-delays", drain_delays),
        ):
            node = world.client(name)
            actor = Actor(shared, node.env, name, world.draws(name), user=ADMIN)
            await _in_client(node, work(actor))
        await world.stop_brokers()
        disks = [node.disk for node in world.brokers]
        return [
            *check_history(self.history, self.scenario.partition_names),
            *check_sealed(disks, self.scenario.encrypted, self.history.entries),
            *self.nonces.check(),
        ]

    def _watch(
        self,
        world: World,
        shared: SharedState,
        timeline: Timeline,
        consumers: TrueConsumerGroups,
        shares: TrueShareStates,
    ) -> Invariants:
        """Lets the invariants check every step of the run."""
        scenario = self.scenario
        logs: list[CoordinatorLog] = [consumers] if scenario.consumer_groups else []
        logs += [shares, *_share_logs(scenario, shares)] if scenario.shares else []
        invariants = self.invariants = Invariants(
            lambda: world.brokers,
            partial(_peek_of, world, {}),
            timeline.add,
            _last_step(world, self.scenario.check_every),
            shared.fences,
            self.watch,
            logs,
        )
        if scenario.consumer_groups:
            audit = self.audit = CoordinatorAudit(
                world,
                lambda: invariants.metadata.image,
                consumers,
                partial(_committed_end, invariants),
            )
            world.on_step(audit.check, every=AUDIT_EVERY_STEPS)
        if scenario.shares:
            leaders = self.share_audit = LeaderAudit(world, shares)
            world.on_step(leaders.check, every=AUDIT_EVERY_STEPS)
        shared.synced_end = partial(_synced_end, invariants)
        shared.is_known = partial(_is_known, world, invariants)
        shared.wall_range = partial(_wall_range, world)
        shared.quota_state = partial(_quota_state, world, shared.tenant_user)
        shared.removal_ms = lambda member: removal_ms(world, invariants.metadata.image, member)
        world.store.listen(invariants.on_store)
        world.on_step(invariants.check, every=self.scenario.check_every)
        return invariants

    def _true_shares(self, world: World, shared: SharedState) -> TrueShareStates:
        def image() -> ClusterImage:
            assert self.invariants is not None
            return self.invariants.metadata.image

        plan = self.scenario.shares
        limit = 0 if plan is None else plan.delivery_limit
        records = ShareRecords(
            partial(_wall_range, world),
            has_letters=plan is not None and plan.dead_letters,
            copies_records=plan is not None and plan.copies_records,
        )
        shares = TrueShareStates(
            shared.shares,
            self.history,
            shared.now_ms,
            limit,
            partial(leader_of, world, image),
            records,
        )
        shared.shares.judge = shares
        return shares

    def _start_actors(self, world: World, shared: SharedState) -> ClientProcesses:
        scenario = self.scenario
        plans: dict[str, Plan] = {
            f"p{number}": partial(run_producer, kind=kind)
            for number, kind in enumerate(scenario.producers)
        }
        plans |= {f"r{number}": run_reader for number in range(scenario.readers)}
        plans |= {
            f"rc{number}": partial(run_reader, committed=True)
            for number in range(scenario.committed_readers)
        }
        plans |= {
            f"t{number}": partial(run_transactor, kind=kind, number=number)
            for number, kind in enumerate(scenario.transactors)
        }
        plans |= {
            f"c{number}": partial(run_copier, number=number) for number in range(scenario.copiers)
        }
        plans |= {f"s{number}": run_sink for number in range(scenario.sinks)}
        plans |= {f"m{number}": run_member for number in range(scenario.members)}
        plans |= {f"pl{number}": run_pipeliner for number in range(scenario.pipeliners)}
        plans |= {f"bad{number}": run_malformer for number in range(scenario.malformers)}
        plans |= {f"kv{number}": run_table_writer for number in range(scenario.tables)}
        plans |= {f"w{number}": run_pipeline_worker for number in range(scenario.workers)}
        plans |= consumer_plans(scenario)
        plans |= share_plans(scenario)
        plans |= delay_plans(scenario)
        plans["asker"] = run_asker
        if scenario.access:
            plans |= {"guest-writer": run_guest_writer, "guest-reader": run_guest_reader}
            plans |= {"guest-member": run_guest_member, "visitor": run_visitor}
            plans |= {f"admin-{right}": partial(run_rights_admin, right=right) for right in RIGHTS}
            plans["admin-password"] = run_password_admin
        if scenario.tokens:
            plans |= {"holder-tokens": run_token_holder}
            plans |= {f"bearer{number}": run_token_bearer for number in range(2)}
        if scenario.quotas:
            plans |= {
                name: partial(run_tenant_writer, client_id=name)
                for name in (WRITER, HASTY_WRITER, NEIGHBOR)
            }
            plans[READER] = partial(run_tenant_reader, client_id=READER)
            plans[MUTATOR] = partial(run_tenant_mutator, client_id=MUTATOR)
            plans["admin-quotas"] = run_quota_admin
        return ClientProcesses(world, shared, plans, ACTOR_USERS)


def _share_logs(scenario: Scenario, shares: TrueShareStates) -> list[CoordinatorLog]:
    """Returns what follows the topics of share groups and their dead letters. None if they have
    neither timed records nor dead letters."""
    plan = scenario.shares
    if plan is None or not (plan.timed or plan.dead_letters):
        return []
    groups = plan.names if plan.dead_letters else ()
    letter_topics = {group: letter_topic(group) for group in groups}
    topics = [topic.name for topic in scenario.topics]
    return logs_to_follow(shares.records, topics, letter_topics, shares.stored)


def _wall_range(
    world: World, broker: int | None, begun_ms: float, ended_ms: float
) -> tuple[int, int]:
    nodes = world.brokers if broker is None else [world.brokers[broker]]
    ranges = [node.wall_range(begun_ms, ended_ms) for node in nodes]
    return min(low for low, _ in ranges), max(high for _, high in ranges)


def _committed_end(invariants: Invariants, partition_name: str) -> int:
    truth = invariants.truths.get(partition_name)
    return 0 if truth is None else truth.end_offset


def _synced_end(invariants: Invariants, partition_name: str) -> int:
    truth = invariants.truths.get(partition_name)
    return 0 if truth is None else truth.synced_end


def _peek_of(world: World, known: dict[int, SealedPeek], broker_id: int) -> Peek:
    """Returns what reads the files of a broker, decrypted if they are encrypted."""
    disk, keys = world.brokers[broker_id].disk, world.keys
    if keys is None:
        return disk.peek
    return known.setdefault(broker_id, SealedPeek(disk, keys)).peek


def _is_known(world: World, invariants: Invariants, name: str) -> bool:
    topic = invariants.metadata.image.topics.get(name)
    images = (node.broker.cluster.image for node in world.brokers if node.broker is not None)
    known = (image.topics.get(name) for image in images)
    return topic is not None and all(
        each is not None and each.topic_id == topic.topic_id for each in known
    )


def _quota_state(
    world: World, user: str | None, broker_id: int, client_id: str, key: str
) -> QuotaState:
    node = world.brokers[broker_id]
    if node.broker is None:
        return NO_STATE
    entities = node.broker.cluster.image.quotas.entities
    version = node.life, node.broker.quotas.changes
    return QuotaState(version, limit_of(entities, client_id, user, key))


def _last_step(world: World, check_every: int) -> Callable[[], int | None]:
    """Returns a function that gives the id of the broker that ran the last step. It gives None for
    a step of the world, which may have changed any broker."""
    if check_every > 1:
        return lambda: None

    loop, nodes = world.loop, world.nodes
    known: dict[Process, int | None] = {loop.world: None}

    def stepped() -> int | None:
        process = loop.stepped
        try:
            return known[process]
        except KeyError:
            node = nodes.get(process.name)
            # Steps of clients do not change any broker.
            found = known[process] = node.id if isinstance(node, BrokerNode) else NO_LEADER
            return found

    return stepped


async def _in_client(node: ClientNode, work: object) -> None:
    # `work` is a coroutine; which one differs from caller to caller.
    await node.spawn(work)  # type: ignore[arg-type]


def run_scenario(
    scenario: Scenario,
    *,
    keep_trace: bool = False,
    bug: AbstractContextManager[object] | None = None,
) -> Verdict:
    """Runs a scenario and judges it. Never raises an exception for a failure inside the run."""
    run = _Run(scenario)
    with bug or nullcontext(), run.watch.on(), run.nonces.on():
        outcome = run_world(scenario.seed, run.play, world_config(scenario, keep_trace=keep_trace))
    return _verdict(run, outcome)


def _verdict(run: _Run, outcome: Outcome[list[Violation]]) -> Verdict:
    verdict = Verdict(
        run.scenario,
        trace_hash=outcome.trace_hash,
        steps=outcome.steps,
        virtual_s=outcome.virtual_s,
        counters=dict(outcome.counters),
        history=run.history,
        trace=list(outcome.trace_lines),
    )
    if run.shared is not None:
        verdict.counters |= run.shared.counters
    if run.audit is not None:
        verdict.counters |= run.audit.counters()
    if run.share_audit is not None:
        verdict.counters["share_leaders_compared"] = run.share_audit.compared
    if run.invariants is not None:
        metadata = run.invariants.metadata
        verdict.counters |= {
            "checks": run.invariants.checks,
            "elections": metadata.elections,
            "isr_shrinks": metadata.shrinks,
            "isr_grows": metadata.grows,
            "joined_while_stopping": metadata.joined_stopping,
            "committed_batches": sum(len(truth.marks) for truth in run.invariants.truths.values()),
        }
    error = outcome.error
    if isinstance(error, InvariantBroken):
        verdict.violations = [error.violation]
    elif error is not None:
        verdict.trouble = f"{describe(error)}\n{''.join(traceback.format_exception(error))}"
    else:
        verdict.violations = outcome.value or []
    if verdict.failed and run.timeline is not None:
        partition_name = verdict.violations[0].partition_name if verdict.violations else ""
        partition_name = (
            partition_name
            if partition_name in run.scenario.partition_names or partition_name.startswith("__")
            else ""
        )
        verdict.timeline = timeline_lines(run.timeline, run.history.entries, partition_name)
    return verdict
