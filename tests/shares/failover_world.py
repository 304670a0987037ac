"""A share partition whose leaders crash and are replaced, with writes that are lost and reordered.

The log of the data loses nothing. The state is kept by a share coordinator, to which leaders send
their writes. A write may be lost on its way, its answer may be lost, and writes overtake each
other. A leader whose write has no answer sends it again. A leader that was replaced does not know
it, and goes on until it is refused. A leader that gives up a write reads the state again, and its
members keep what they have.

What the machine requires of those around it: a write takes effect at most once, never after it was
reported as failed, and never after another leader has read the state. `ShareCoordinator` keeps
these rules: it knows leaders by their epochs and loads, and writes by their numbers.

What members see is checked at once:
- a record is not delivered while another member of the same leader has it locked;
- a record whose acknowledgement was confirmed is not delivered by a leader that began later, or
  that confirmed it, and is not acknowledged twice;
- only the member that has a record can acknowledge it;
- a member keeps what it has when its leader reads the state again, except what it has acknowledged.

At the end a last leader delivers everything that is left. No record is lost: each was accepted or
rejected by a member that had it, or was delivered as often as the limit allows.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

from penstock.coordination.effects import Now, SetTimer
from penstock.shares.events import (
    AckBatch,
    Acknowledge,
    Acknowledged,
    Acquire,
    Acquired,
    Effect,
    Event,
    LogBatch,
    ReleaseMember,
    TimerFired,
    Write,
    WriteCommitted,
    WriteFailed,
)
from penstock.shares.image import Delta, ShareImage
from penstock.shares.settings import ShareSettings
from penstock.shares.share_partition import SharePartition
from penstock.shares.states import AckType
from penstock.wire.errors import ErrorCode

LOCK_MS = 1_000
MEMBERS = ("anna", "ben", "cleo")
STEPS = 400


class RuleBroken(AssertionError):
    """Members saw what they must not see."""


class ShareCoordinator:
    """The durable state, and which leader may change it."""

    def __init__(self) -> None:
        self.image = ShareImage.starting_at(0)
        self.leader_epoch = -1
        self.load = 0
        self._stored: set[int] = set()

    def read(self, leader_epoch: int) -> tuple[ShareImage, int]:
        """Returns the state and the number of this load. Earlier loads are refused from now on."""
        self.leader_epoch = leader_epoch
        self.load += 1
        self._stored.clear()
        return self.image.copy(), self.load

    def write(self, leader_epoch: int, load: int, write_id: int, delta: Delta) -> bool:
        """Returns False if the leader is refused."""
        if not self.knows(leader_epoch, load):
            return False
        if not self.is_stored(write_id):
            self._stored.add(write_id)
            self.image.apply(delta)
        return True

    def knows(self, leader_epoch: int, load: int) -> bool:
        return (leader_epoch, load) == (self.leader_epoch, self.load)

    def is_stored(self, write_id: int) -> bool:
        return write_id in self._stored


@dataclass(eq=False)
class Message:
    """A write on its way to the share coordinator, or the answer on its way back."""

    leader: Leader
    write: Write
    is_slow: bool = False
    stored: bool | None = None
    """None: it has not arrived."""


@dataclass
class Asked:
    """An acknowledgement that a member waits for."""

    member: str
    first: int
    last: int
    type: AckType
    was_holder: bool


@dataclass(eq=False)
class Leader:
    epoch: int
    load: int
    machine: SharePartition
    begun: int
    """How many acknowledgements were confirmed when it read the state."""
    writes: dict[int, Write] = field(default_factory=dict)
    """Those without an answer."""
    timer_ms: int | None = None
    locks: dict[int, tuple[str, int]] = field(default_factory=dict)
    """By offset: the member that has it, and until when."""
    asked: dict[object, Asked] = field(default_factory=dict)
    is_over: bool = False


class FailoverWorld:
    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.settings = ShareSettings(
            record_lock_ms=LOCK_MS,
            delivery_limit=self.random.choice((2, 3, 5)),
            in_flight_max=self.random.choice((5, 20, 1_000)),
            backoff_ms=self.random.choice((0, 0, 200)),
            backoff_max_ms=800,
        )
        self.ticks_ms = 10_000
        self.log: list[LogBatch] = []
        self.coordinator = ShareCoordinator()
        self.messages: list[Message] = []
        self.leaders: list[Leader] = []
        self.confirmed: dict[int, int] = {}
        """By offset: the number of the confirmation of its acceptance."""
        self.confirmed_by: dict[int, Leader] = {}
        self.ended: dict[int, None] = {}
        """Offsets that a member wanted to accept or reject."""
        self.deliveries: dict[int, int] = {}
        self.counts: dict[str, int] = {}
        self._tokens = 0
        self.elect()

    def count(self, name: str) -> None:
        self.counts[name] = self.counts.get(name, 0) + 1

    @property
    def now(self) -> Now:
        return Now(self.ticks_ms, self.ticks_ms + 1_000_000)

    @property
    def log_end(self) -> int:
        return self.log[-1].last + 1 if self.log else 0

    # Leaders

    def elect(self) -> Leader:
        """Another broker leads. The leader before it does not know that."""
        image, load = self.coordinator.read(self.coordinator.leader_epoch + 1)
        machine = SharePartition(self.settings, image, self.now)
        leader = Leader(self.coordinator.leader_epoch, load, machine, len(self.confirmed))
        self.leaders.append(leader)
        self._carry_out(leader, machine.on_loaded(self.now))
        return leader

    def load_again(self, leader: Leader) -> None:
        """The leader does not wait for its writes any more. They may be stored, or not."""
        epoch, machine = leader.epoch, leader.machine
        if epoch != self.coordinator.leader_epoch:
            return
        self.count("loads_again")
        self.crash(leader)
        image, load = self.coordinator.read(epoch)
        again = SharePartition(self.settings, image, self.now)
        again.put_back(machine.locks)
        after = Leader(epoch, load, again, len(self.confirmed))
        in_doubt = [range(each.first, each.last + 1) for each in leader.asked.values()]
        for offset, lock in leader.locks.items():
            if not any(offset in each for each in in_doubt):
                after.locks[offset] = lock
        self.leaders.append(after)
        self._carry_out(after, again.on_loaded(self.now))
        again.verify()
        self._check_kept(after)

    def _check_kept(self, leader: Leader) -> None:
        for offset, (member, until_ms) in leader.locks.items():
            if self.ticks_ms < until_ms:
                spans = [each for each in leader.machine.spans if each.first <= offset <= each.last]
                if [each.owner for each in spans] != [member]:
                    raise RuleBroken(f"{member} has lost {offset}: {spans}")

    def crash(self, leader: Leader) -> None:
        """Everything in its memory is lost. Its writes may still arrive."""
        leader.is_over = True
        leader.writes.clear()
        self.leaders.remove(leader)

    def handle(self, leader: Leader, event: Event) -> None:
        self._carry_out(leader, leader.machine.handle(event, self.now))
        leader.machine.verify()

    def _carry_out(self, leader: Leader, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Write():
                    leader.writes[effect.write_id] = effect
                    self._send(leader, effect)
                case Acknowledged():
                    self._on_acknowledged(leader, leader.asked.pop(effect.token), effect.error)
                case Acquired():
                    member = str(effect.token).partition("#")[0]
                    for first, last, _ in effect.ranges:
                        for offset in range(first, last + 1):
                            self._on_delivered(leader, member, offset)
                case SetTimer():
                    leader.timer_ms = effect.at_ms

    # Messages

    def _send(self, leader: Leader, write: Write) -> None:
        self.messages.append(Message(leader, write, is_slow=self.random.random() < 0.15))

    def move_message(self) -> None:
        """Delivers a message, or loses it. They overtake each other."""
        message = self.random.choice(self.messages)
        if message.is_slow and self.random.random() < 0.95:
            return
        self.messages.remove(message)
        if self.random.random() < 0.15:
            self.count("messages_lost")
            return
        if message.stored is None:
            leader, write = message.leader, message.write
            message.stored = self.coordinator.write(
                leader.epoch, leader.load, write.write_id, write.delta
            )
            self.messages.append(message)
        else:
            self._on_outcome(message)

    def _on_outcome(self, message: Message) -> None:
        leader, write_id = message.leader, message.write.write_id
        if leader.is_over or leader.writes.pop(write_id, None) is None:
            return
        if message.stored:
            self.handle(leader, WriteCommitted(write_id))
        else:
            self.count("leaders_refused")
            self.crash(leader)

    def on_timeout(self, leader: Leader) -> None:
        """A write had no answer in time: it is sent again, because it may have been stored."""
        write = self.random.choice([*leader.writes.values()])
        self.count("writes_repeated")
        self._send(leader, write)

    def fail_write(self, leader: Leader) -> None:
        """A write fails for sure: it is no longer on its way, and is not stored."""
        write = self.random.choice([*leader.writes.values()])
        is_current = self.coordinator.knows(leader.epoch, leader.load)
        if is_current and self.coordinator.is_stored(write.write_id):
            return
        own = [each for each in self.messages if each.leader is leader]
        for message in own:
            if message.write is write:
                self.messages.remove(message)
        del leader.writes[write.write_id]
        self.count("writes_failed")
        self.handle(leader, WriteFailed(write.write_id, ErrorCode.NOT_ENOUGH_REPLICAS))

    # Members

    def fetch(self, leader: Leader, member: str) -> None:
        offset = leader.machine.next_fetch_offset(self.now)
        if offset is None:
            return
        self._tokens += 1
        batches = tuple(batch for batch in self.log if batch.last >= offset)
        limit = self.random.choice((1, 3, 100))
        self.handle(leader, Acquire(f"{member}#{self._tokens}", member, offset, batches, limit))

    def _on_delivered(self, leader: Leader, member: str, offset: int) -> None:
        self.count("deliveries")
        holder, until_ms = leader.locks.get(offset, ("", 0))
        if holder and self.ticks_ms < until_ms:
            raise RuleBroken(f"{offset} was delivered to {member} while {holder} had it")
        number = self.confirmed.get(offset)
        if number is not None and (number < leader.begun or self.confirmed_by[offset] is leader):
            raise RuleBroken(f"{offset} was delivered to {member} after it was acknowledged")
        leader.locks[offset] = member, self.ticks_ms + LOCK_MS
        self.deliveries[offset] = self.deliveries.get(offset, 0) + 1

    def acknowledge(self, leader: Leader, member: str, offset: int, kind: AckType) -> None:
        """Acknowledges the record, and those after it that the member has too."""
        last = offset
        while leader.locks.get(last + 1, ("", 0))[0] == member and self.random.random() < 0.7:
            last += 1
        self._tokens += 1
        # What is below the start is done. To acknowledge it again has no effect, and no error.
        first = max(offset, leader.machine.start_offset)
        held = [leader.locks.get(each, ("", 0))[0] == member for each in range(first, last + 1)]
        leader.asked[self._tokens] = Asked(member, first, last, kind, all(held))
        if all(held) and kind in (AckType.ACCEPT, AckType.REJECT):
            self.ended |= dict.fromkeys(range(offset, last + 1))
        batch = AckBatch(offset, last, (int(kind),))
        self.handle(leader, Acknowledge(self._tokens, member, (batch,)))

    def _on_acknowledged(self, leader: Leader, asked: Asked, error: ErrorCode) -> None:
        self.count(f"acknowledged_{error.name.lower()}")
        if error is not ErrorCode.NONE:
            return
        if not asked.was_holder:
            raise RuleBroken(f"{asked} was confirmed, but {asked.member} did not have the records")
        for offset in range(asked.first, asked.last + 1):
            leader.locks.pop(offset, None)
            if asked.type is not AckType.ACCEPT:
                continue
            if offset in self.confirmed:
                raise RuleBroken(f"{offset} was acknowledged twice")
            self.confirmed[offset] = len(self.confirmed)
            self.confirmed_by[offset] = leader

    def end_session(self, leader: Leader, member: str) -> None:
        for offset in [each for each, lock in leader.locks.items() if lock[0] == member]:
            del leader.locks[offset]
        self.handle(leader, ReleaseMember(member, with_backoff=False))

    # The run

    def wait(self, milliseconds: int) -> None:
        self.ticks_ms += milliseconds
        for leader in [*self.leaders]:
            if leader.timer_ms is not None and leader.timer_ms <= self.ticks_ms:
                leader.timer_ms = None
                self.handle(leader, TimerFired())

    def step(self) -> None:
        draws = self.random
        leader = draws.choice(self.leaders) if self.leaders else self.elect()
        member = draws.choice(MEMBERS)
        chance = draws.random()
        if chance < 0.08:
            size = draws.randint(1, 4)
            self.log.append(LogBatch(self.log_end, self.log_end + size - 1, leader.epoch))
        elif chance < 0.25:
            self.fetch(leader, member)
        elif chance < 0.45 and leader.locks:
            offset = draws.choice(sorted(leader.locks))
            owner = leader.locks[offset][0]
            kind = draws.choice((AckType.ACCEPT, AckType.ACCEPT, AckType.RELEASE, AckType.REJECT))
            self.acknowledge(leader, owner if draws.random() < 0.9 else member, offset, kind)
        elif chance < 0.77 and self.messages:
            self.move_message()
        elif chance < 0.83 and leader.writes:
            self.on_timeout(leader)
        elif chance < 0.85 and leader.writes:
            self.fail_write(leader)
        elif chance < 0.86:
            self.end_session(leader, member)
        elif chance < 0.87 and leader.writes:
            self.load_again(leader)
        elif chance < 0.885:
            self.count("elections")
            self.elect()
        elif chance < 0.90:
            self.count("crashes")
            self.crash(leader)
        else:
            self.wait(draws.choice((10, 100, 400, 1_100)))

    def run(self, steps: int = STEPS) -> None:
        for _ in range(steps):
            self.step()
        self._drain()

    def _drain(self) -> None:
        """A last leader delivers what is left, without any fault."""
        for leader in [*self.leaders]:
            self.crash(leader)
        # What the others have sent may still arrive.
        while self.messages:
            self.move_message()
        last = self.elect()
        for _ in range(20 * (self.log_end + 2)):
            if last.machine.start_offset >= self.log_end:
                break
            self.fetch(last, MEMBERS[0])
            for offset in sorted(last.locks):
                if offset in last.locks:
                    self.acknowledge(last, MEMBERS[0], offset, AckType.ACCEPT)
                    self._settle()
            self.wait(LOCK_MS + 1)
            self._settle()
        lost = [
            offset
            for offset in range(self.log_end)
            if offset not in self.ended
            and self.deliveries.get(offset, 0) < self.settings.delivery_limit
        ]
        if lost or last.machine.start_offset < self.log_end:
            raise RuleBroken(f"{lost} were lost; {last.machine.spans} are left")

    def _settle(self) -> None:
        """Delivers all messages, without losses."""
        while self.messages:
            message = self.messages.pop(0)
            leader, write = message.leader, message.write
            message.stored = self.coordinator.write(
                leader.epoch, leader.load, write.write_id, write.delta
            )
            self._on_outcome(message)
