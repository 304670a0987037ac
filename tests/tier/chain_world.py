"""Leaders, zombies and collectors on one chain, with a store that fails, in virtual time.

Each of them runs the product's procedures. Between any two of its requests it may stall for long,
crash, or be replaced. A request may be throttled, be carried out without an answer, be carried out
long after the caller has given up or died, or get the wrong answer "exists already".

The world knows what it must not know in production: which create of a number was the first one.
After every change of the bucket it checks (`oracle`):

- a manifest that counts names only objects that exist, and continues the one before it;
- only the leader with the claim has changed a partition;
- nothing that was acknowledged is missing, so that local data could be deleted.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from copy import deepcopy
from dataclasses import dataclass, field
from random import Random
from typing import Any

from penstock.tier import collector, commit, upload
from penstock.tier.chain import View, find
from penstock.tier.collector import CollectorSettings
from penstock.tier.edits import Append, DeleteBefore, Edit, Replace, TruncateTo
from penstock.tier.errors import (
    AlreadyExists,
    EditRefused,
    Fenced,
    NotFound,
    OutcomeUnknown,
    Overtaken,
    StoreError,
    Throttled,
)
from penstock.tier.keys import Claim, TopicIdPartition, manifest_key
from penstock.tier.manifest import Entry, Section
from penstock.tier.rebuild import Leader, rebuild
from penstock.tier.requests import BackOff, Create, Delete, Procedure, Request
from penstock.tier.spill import SpillLimits

from .chain_oracle import Oracle
from .object_samples import TOPIC_ID, sample_object
from .procedure_runner import Runner
from .simulated_bucket import SimulatedBucket

LIMITS = SpillLimits(entries_max=6, dropped_max=6, sub_manifest_entries_max=4)
SETTINGS = CollectorSettings(history_ms=60, orphan_age_ms=30, sighting_interval_ms=20)
SETTLE_STEPS_MAX = 50_000


@dataclass(eq=False)
class Actor:
    """A process. `life` is dropped when it crashes."""

    name: str
    life: Procedure[None]
    request: Request | None = None
    frozen_until: int = 0
    is_over: bool = False


@dataclass(eq=False)
class Leadership:
    """What a leader believes of one partition."""

    owner: TopicIdPartition
    epoch: int
    claim: Claim | None = None
    tried: list[Claim] = field(default_factory=list)
    """All claims that were made, and those whose outcome is unknown."""
    is_fenced: bool = False


@dataclass
class ChainWorld:
    random: Random
    partitions: int = 2
    has_faults: bool = True
    step_number: int = 0
    counts: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.chain = "shared/0" if self.partitions > 1 else f"{TOPIC_ID}/0"
        self.bucket = SimulatedBucket(Random(self.random.random()))
        self.owners = [TopicIdPartition(TOPIC_ID, number) for number in range(self.partitions)]
        self.oracle = Oracle(self.bucket, self.chain)
        self.clock_error_ms = self.random.choice((0, 0, 0, 100, 1000))
        """How far the clock of a collector may be wrong."""
        if not self.clock_error_ms:
            self.oracle.history_ms = SETTINGS.history_ms
        self.log_end = dict.fromkeys(self.owners, 0)
        self.epochs = dict.fromkeys(self.owners, 0)
        self.actors: list[Actor] = []
        self.late: list[Request] = []
        for owner in self.owners:
            self.elect([owner])
        self.start("collector", self._collect())

    def draw(self, size: int) -> bytes:
        return self.random.randbytes(size)

    def count(self, what: str) -> None:
        self.counts[what] = self.counts.get(what, 0) + 1

    def start(self, name: str, life: Procedure[None]) -> Actor:
        actor = Actor(name, life)
        self.actors.append(actor)
        self._resume(actor, lambda: next(life))
        return actor

    def elect(self, owners: list[TopicIdPartition], *, is_restart: bool = False) -> Actor:
        """Another leader begins. The ones before it are not told."""
        for owner in owners:
            self.epochs[owner] += not is_restart
        led = [Leadership(owner, self.epochs[owner]) for owner in owners]
        return self.start(f"leader of {owners} in {led[0].epoch}", self._lead(led))

    # What leaders and collectors do

    def _lead(self, led: list[Leadership]) -> Procedure[None]:
        view = yield from self._find(None)
        while not all(each.is_fenced for each in led):
            try:
                view = yield from self._lead_once(view, led)
            except (OutcomeUnknown, Overtaken, EditRefused, Throttled) as error:
                self.count(type(error).__name__)
                view = yield from self._find(None if isinstance(error, Overtaken) else view)

    def _find(self, known: View | None) -> Procedure[View]:
        while True:
            least = len(self.oracle.manifests)
            try:
                view = yield from find(self.chain, known)
            except Throttled:
                yield BackOff(0)
            else:
                self.oracle.check_view(view, least)
                return view

    def _lead_once(self, view: View, led: list[Leadership]) -> Procedure[View]:
        for each in led:
            self._has_own_claim(view, each)
            if each.claim is None or self.random.random() < 0.1:
                try:
                    view = yield from self._claim(view, each)
                except Fenced:
                    self.count("fenced")
                    each.is_fenced = True
        edits: list[Edit] = []
        for each in led:
            if not each.is_fenced and self.random.random() < 0.8:
                edit = yield from self._draw_edit(view, each)
                if edit is not None:
                    edits.append(edit)
        if not edits:
            yield BackOff(0)
            return view
        done = yield from commit.commit(view, edits, self.now_ms, self.draw, limits=LIMITS)
        for edit, refusal in zip(edits, done.refused, strict=True):
            leadership = next(each for each in led if each.owner == edit.owner)
            if isinstance(refusal, Fenced):
                if not self._has_own_claim(done.view, leadership):
                    self.count("fenced")
                    leadership.is_fenced = True
            elif refusal is None:
                self.oracle.on_acknowledged(done.view.manifest, edit)
                self.count(type(edit).__name__)
        return done.view

    def _claim(self, view: View, leadership: Leadership) -> Procedure[View]:
        owner, now_ms = leadership.owner, self.now_ms
        if not leadership.tried:
            view, new = yield from commit.claim(
                view, owner, leadership.epoch, now_ms, self.draw, limits=LIMITS
            )
            leadership.tried.append(new)
        else:
            new = commit.new_claim(leadership.epoch, self.draw)
            leadership.tried.append(new)
            view = yield from commit.renew(
                view, owner, new, leadership.tried, now_ms, self.draw, limits=LIMITS
            )
            self.count("renewals")
        leadership.claim = new
        self.oracle.on_claimed(view.manifest, owner, new, leadership.tried)
        return view

    def _has_own_claim(self, view: View, leadership: Leadership) -> bool:
        """Takes the claim in the manifest for its own, if it has tried it."""
        section = view.manifest.sections.get(leadership.owner)
        if section is None or section.claim not in leadership.tried:
            return False
        leadership.claim = section.claim
        return True

    def _draw_edit(self, view: View, leadership: Leadership) -> Procedure[Edit | None]:
        owner, claim = leadership.owner, leadership.claim
        section = view.manifest.sections.get(owner)
        if section is None or claim is None:
            return None
        what = self.random.random()
        if what < 0.15 and section.start_offset < section.end_offset:
            start = self.random.randint(section.start_offset, section.end_offset)
            self.oracle.allowed_start[owner] = max(self.oracle.allowed_start[owner], start)
            return DeleteBefore(owner, claim, start)
        if what < 0.17 and section.items:
            # An election has lost committed records.
            end = self.random.randint(section.start_offset, section.end_offset)
            self.oracle.ordered_truncations.add((claim, end))
            return TruncateTo(owner, claim, end)
        if what < 0.3 and section.items:
            return (yield from self._compaction(section, claim))
        start = section.end_offset
        self.log_end[owner] = max(self.log_end[owner], start + 3)
        entries = []
        for _ in range(self.random.randint(1, 2)):
            end = start + self.random.randint(1, 2)
            encoded = sample_object(start, end, owner, 1)
            entries.append((yield from upload.upload(encoded, claim, self.draw)))
            start = end
        return Append(owner, claim, tuple(entries))

    def _compaction(self, section: Section, claim: Claim) -> Procedure[Edit]:
        first = self.random.randrange(len(section.items))
        last = min(len(section.items) - 1, first + self.random.randint(0, 2))
        start, end = section.items[first].base_offset, section.items[last].end_offset
        encoded = sample_object(start, end, section.owner, 1)
        entry: Entry = yield from upload.upload(encoded, claim, self.draw)
        return Replace(section.owner, claim, (entry,))

    def _collect(self) -> Procedure[None]:
        sightings: Any = {}
        view: View | None = None
        wrong_ms = self.random.randint(-self.clock_error_ms, self.clock_error_ms)
        while True:
            least = len(self.oracle.manifests)
            try:
                found = yield from collector.collect(
                    self.chain, sightings, self.now_ms + wrong_ms, SETTINGS, known=view
                )
                sightings, view = found.sightings, found.view
                self.oracle.check_view(view, least)
                self.count("rounds")
                for key in found.deleted:
                    self.count(f"deleted_{key[:3]}")
            except (StoreError, NotFound):
                self.count("failed_rounds")
            yield BackOff(0)

    # What happens to them

    @property
    def now_ms(self) -> int:
        return self.bucket.now_ms

    def step(self) -> None:
        """One thing happens."""
        self.step_number += 1
        if self.random.random() < 0.3:
            self.bucket.now_ms += self.random.randint(0, 4)
        chance = self.random.random()
        if not self.has_faults:
            pass
        elif chance < 0.01:
            self._crash(self.random.choice(self.actors))
        elif chance < 0.02:
            self.count("elections")
            self.elect([self.random.choice(self.owners)], is_restart=self.random.random() < 0.4)
        elif chance < 0.024:
            self.count("more_collectors")
            self.start("collector", self._collect())
        elif chance < 0.06 and self.late:
            self._deliver_late()
        ready = [each for each in self.actors if each.frozen_until <= self.step_number]
        if ready:
            self._carry_out(self.random.choice(ready))
        self.actors = [each for each in self.actors if not each.is_over]
        if sum(each.name == "collector" for each in self.actors) == 0:
            self.start("collector", self._collect())

    def _crash(self, actor: Actor) -> None:
        self.count("crashes")
        actor.is_over = True
        if isinstance(actor.request, Create | Delete) and self.random.random() < 0.5:
            self.late.append(actor.request)

    def _deliver_late(self) -> None:
        """A request arrives that nobody waits for any more."""
        request = self.late.pop(self.random.randrange(len(self.late)))
        self.count("late_requests")
        try:
            self.oracle.apply(request)
        except StoreError:
            self.count("late_requests_refused")

    def _carry_out(self, actor: Actor) -> None:
        request = actor.request
        assert request is not None
        if isinstance(request, BackOff):
            self._resume(actor, lambda: actor.life.send(None))
            return
        writes = isinstance(request, Create | Delete)
        if self.has_faults and self._has_stalled(actor, request):
            return
        chance = self.random.random() if self.has_faults else 1.0
        if chance < 0.015:
            self._fail(actor, Throttled("slow down"))
        elif chance < 0.06 and writes:
            # It was not carried out yet, and may be later.
            self.late.append(request)
            self._fail(actor, OutcomeUnknown("no answer"))
        elif chance < 0.08 and isinstance(request, Create):
            self._fail(actor, AlreadyExists("conflict: try again"))
        else:
            self._answer(actor, request, is_lost=writes and chance < 0.12)

    def _has_stalled(self, actor: Actor, request: Request) -> bool:
        """A process stops for a while, most often when it is about to commit."""
        is_commit = isinstance(request, Create) and request.key.startswith("man/")
        if self.random.random() >= (0.06 if is_commit else 0.004):
            return False
        self.count("stalls")
        actor.frozen_until = self.step_number + self.random.choice((20, 200, 600))
        return True

    def _answer(self, actor: Actor, request: Request, *, is_lost: bool) -> None:
        writes = isinstance(request, Create | Delete)
        try:
            result = self.oracle.apply(request)
        except StoreError as error:
            result = error
        if self.has_faults and writes and self.random.random() < 0.02:
            # The network has duplicated the request. The copy arrives later.
            self.count("duplicates")
            self.late.append(request)
        if is_lost and self.random.random() < 0.3 and isinstance(request, Create):
            # The client has repeated the request by itself.
            self.count("repeated_by_client")
            self._fail(actor, AlreadyExists("exists"))
        elif is_lost:
            self.count("lost_answers")
            self._fail(actor, OutcomeUnknown("no answer"))
        elif isinstance(result, StoreError):
            self._fail(actor, result)
        else:
            self._resume(actor, lambda: actor.life.send(result))

    def _fail(self, actor: Actor, error: StoreError) -> None:
        self._resume(actor, lambda: actor.life.throw(error))

    def _resume(self, actor: Actor, go_on: Callable[[], Request]) -> None:
        try:
            actor.request = go_on()
        except StopIteration:
            actor.is_over = True

    # The end

    def settle(self) -> None:
        """Faults end. New leaders take over, upload everything, and the bucket is collected."""
        self.has_faults = False
        self.actors = []
        while self.late:
            self._deliver_late()
        self.bucket._random = None
        self._check_rebuilt()
        for number in range(3):
            self.bucket.now_ms += 10 * SETTINGS.history_ms
            for owner in self.owners:
                self.epochs[owner] += 1
                self._run(self._catch_up(owner, self.epochs[owner]))
            self.bucket.now_ms += 10 * SETTINGS.history_ms
            sightings: Any = {}
            for _ in range(3):
                done: Any = self._run(
                    collector.collect(self.chain, sightings, self.now_ms, SETTINGS)
                )
                sightings = done.sightings
                self.bucket.now_ms += 10 * SETTINGS.history_ms
            assert number < 2 or not sightings, f"orphans are left: {sightings}"

    def _check_rebuilt(self) -> None:
        """If the newest manifest were damaged now, the footers would have all that counts."""
        newest = self.oracle.newest
        if newest is None or not newest.sections:
            return
        bucket = deepcopy(self.bucket)
        key = manifest_key(self.chain, newest.seq)
        bucket.put(key, bucket.objects[key][:-1])
        leaders = {
            owner: Leader(Claim(1000, "f" * 16), section.start_offset, section.end_offset)
            for owner, section in newest.sections.items()
        }
        runner = Runner(bucket)
        done = runner.run(rebuild(self.chain, leaders, self.now_ms, self.draw))
        assert done.damaged == []
        for owner, section in done.view.manifest.sections.items():
            before = newest.sections[owner]
            assert section.start_offset == before.start_offset
            assert section.end_offset >= before.end_offset
            assert all(item.key in bucket.objects for item in section.items)
        known = runner.run(collector.needed_keys(done.view, self.oracle.floor))
        for seq in range(self.oracle.floor, newest.seq + 1):
            assert self.oracle.named[seq] <= known, "a rebuilt manifest has forgotten the history"

    def _catch_up(self, owner: TopicIdPartition, epoch: int) -> Procedure[None]:
        view = yield from find(self.chain)
        view, claim = yield from commit.claim(
            view, owner, epoch, self.now_ms, self.draw, limits=LIMITS
        )
        section = view.manifest.sections[owner]
        if section.end_offset < self.log_end[owner]:
            encoded = sample_object(section.end_offset, self.log_end[owner], owner, 1)
            entry = yield from upload.upload(encoded, claim, self.draw)
            edit = Append(owner, claim, (entry,))
            done = yield from commit.commit(view, [edit], self.now_ms, self.draw, limits=LIMITS)
            assert done.refused == (None,)
            self.oracle.on_acknowledged(done.view.manifest, edit)

    def _run(self, procedure: Generator[Request, Any, Any]) -> object:
        """Runs a procedure to its end, without faults."""
        result: Any = None
        error: StoreError | None = None
        for _ in range(SETTLE_STEPS_MAX):
            try:
                request = procedure.throw(error) if error else procedure.send(result)
            except StopIteration as end:
                return end.value
            result, error = None, None
            if not isinstance(request, BackOff):
                try:
                    result = self.oracle.apply(request)
                except StoreError as failure:
                    error = failure
        raise AssertionError("a procedure does not end")
