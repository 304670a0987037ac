"""The parts of the random walk over a partition's replicas: nodes, messages, scenarios, bugs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any, NamedTuple

from penstock.metadata.decisions import Decision
from penstock.metadata.isr import IsrAnswer, alter_isrs
from penstock.metadata.model import Partition
from penstock.partition.epochs import LeaderEpochs
from penstock.partition.follower import Fetch, FetchAnswer, Follower
from penstock.partition.leadership import AlterIsr, Leadership


class Violated(Exception):
    """An invariant does not hold; the message says which one, and where."""


class Record(NamedTuple):
    epoch: int
    value: int


@dataclass(frozen=True)
class Snapshot:
    """The metadata at one moment. Each node sees it with a delay."""

    partition: Partition
    brokers: dict[int, int]
    min_insync: int
    stopping: frozenset[int]


@dataclass(frozen=True)
class Scenario:
    """The settings of one walk. Drawn from the seed, printed with a failure."""

    seed: int
    brokers: int
    min_insync: int
    durability: str
    weights: dict[str, float]


@dataclass(frozen=True)
class Bugs:
    """The rules to leave out of the machines; the defaults leave out none."""

    leadership: type[Leadership] = Leadership
    follower: type[Follower] = Follower
    alter: Callable[..., Decision[tuple[IsrAnswer, ...]]] = alter_isrs
    truncates_to_high_watermark: bool = False
    counts_unsynced: bool = False
    always_claims_proof: bool = False
    serves_latest_at_once: bool = False
    counts_before_divergence: bool = False
    leads_across_restarts: bool = False


class Node:
    """A broker: a disk that survives restarts, and the state of the running process."""

    def __init__(self, broker_id: int) -> None:
        self.id = broker_id
        self.up = False
        self.broker_epoch = -1
        self.lossless_since = -1
        self.lossless = True
        """True if nothing that was written has been lost since the last start."""
        self.records: list[Record] = []
        self.durable = 0
        self.epochs = LeaderEpochs()
        self.high_watermark = 0
        self.seen = -1
        self.leadership: Leadership | None = None
        self.follower: Follower | None = None
        self.sent: Fetch | None = None
        self.proposed: AlterIsr | None = None
        self.waiting: list[tuple[int, int]] = []

    @property
    def end(self) -> int:
        return len(self.records)

    def cut(self, offset: int) -> None:
        del self.records[offset:]
        self.durable = min(self.durable, offset)
        self.epochs.truncate_from_end(offset)

    def note(self, record: Record) -> None:
        self.epochs.assign(record.epoch, self.end)
        self.records.append(record)

    def forget(self) -> None:
        """Clears everything that the process knew."""
        self.up = False
        self.leadership = None
        self.follower = None
        self.sent = None
        self.proposed = None
        self.waiting = []
        self.high_watermark = 0
        self.epochs = LeaderEpochs()
        for offset, record in enumerate(self.records):
            self.epochs.assign(record.epoch, offset)


@dataclass
class Message:
    sender: int
    receiver: int
    body: Any
    incarnation: int
    """The broker epoch of the node that gets the answer. An answer to an earlier epoch is
    dropped."""


@dataclass(frozen=True)
class Ask:
    fetch: Fetch


@dataclass(frozen=True)
class Reply:
    fetch: Fetch
    answer: FetchAnswer
    records: tuple[Record, ...]


@dataclass(frozen=True)
class Propose:
    proposal: AlterIsr


@dataclass(frozen=True)
class Decided:
    proposal: AlterIsr
    answer: IsrAnswer


ACTIONS = {
    "deliver": 12.0,
    "fetch": 8.0,
    "produce": 5.0,
    "flush": 6.0,
    "learn": 6.0,
    "propose": 5.0,
    "tick": 1.0,
    "elect": 5.0,
    "restart": 3.0,
    "lose": 1.0,
    "time_out": 1.0,
    "kill": 0.3,
    "power_loss": 0.4,
    "expire": 0.4,
    "bounce": 0.5,
    "latest": 1.0,
    "hold_election": 0.7,
    "commit_held": 1.0,
    "prefer": 0.4,
    "move": 0.3,
    "cancel_move": 0.15,
    "stop": 0.3,
    "set_min_insync": 0.3,
}
FAULTS = (
    "lose",
    "time_out",
    "tick",
    "kill",
    "power_loss",
    "expire",
    "bounce",
    "hold_election",
    "prefer",
    "move",
    "stop",
    "set_min_insync",
)


def scenario(seed: int) -> Scenario:
    random = Random(seed)
    weights = {name: weight * random.choice((0.4, 1.0, 2.5)) for name, weight in ACTIONS.items()}
    # A few kinds of faults in each walk, with many of each, find more than all kinds at once.
    active = random.sample(FAULTS, random.randint(2, 5))
    for name in FAULTS:
        weights[name] *= 3.0 if name in active else 0.0
    durability = random.choice(("fsync", "replicated"))
    if durability == "replicated":
        # The number of brokers that may lose power is counted against min.insync.replicas, and
        # moves would leave fewer replicas with the records.
        weights["set_min_insync"] = weights["move"] = 0.0
    with_one = durability == "fsync" and random.random() < 0.5
    least = 1 if with_one else random.choice((2, 2, 3))
    return Scenario(seed, random.choice((3, 3, 4)), least, durability, weights)


@dataclass
class Seen:
    """What clients have received and may rely on."""

    committed: list[Record] = field(default_factory=list)
    acknowledged: dict[int, int] = field(default_factory=dict)
    latest: dict[int, int] = field(default_factory=dict)
    """The largest answer to ListOffsets, by leader epoch."""
    leaders: dict[int, tuple[int, int]] = field(default_factory=dict)
