"""Random walks: transactions are all or nothing under any faults.

Producers start, hang, are replaced and repeat requests. Messages are delayed, duplicated and lost.
Coordinators and leaders die at any moment. The shard and the partitions' producer state are real.
Producers follow the protocol of transaction.version 2. After every step the shard's invariants
hold, and what a reader of committed records was once shown has not changed. At the end

- a transaction that its producer knows to be committed is read whole, an aborted one not at all;
- of one whose outcome its producer never learned, either all that was acknowledged is read or
  nothing, and nothing if its producer never asked to commit;
- nothing is read twice, and no transaction is open on any partition.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from penstock.coordination.effects import Token
from penstock.txns.transaction import Producer
from penstock.wire.errors import ErrorCode

from .network import Network

TOPIC_PARTITIONS = ("t-0", "t-1", "t-2")
TIMEOUT_MS = 3000
WAIT_AGAIN = (
    ErrorCode.CONCURRENT_TRANSACTIONS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
)


@dataclass
class Attempt:
    """One transaction of one producer."""

    name: str
    writes: list[tuple[str, str]] = field(default_factory=list)
    """The acknowledged writes: (topic partition, value)."""
    fate: str = "unknown"
    is_to_commit: bool = False


@dataclass
class Client:
    """A producer: one request at a time, which it repeats if no response comes for a while."""

    number: int
    transactional_id: str
    me: Producer | None = None
    expected: Producer | None = None
    attempt: Attempt | None = None
    sequences: dict[str, int] = field(default_factory=dict)
    doing: Callable[[], None] | None = None
    waits: int | None = None
    ends: bool | None = None
    is_fenced: bool = False


class Walk(Network):
    end_version = 5

    def __init__(self, seed: int) -> None:
        super().__init__(seed, TOPIC_PARTITIONS)
        self.clients: list[Client] = []
        self.attempts: list[Attempt] = []
        self.ops = 0
        for index in range(self.random.randint(1, 3)):
            self.add_client(f"id-{index}")

    def add_client(self, transactional_id: str) -> None:
        self.clients.append(Client(len(self.clients), transactional_id))

    # Clients

    def begin(self, client: Client, doing: Callable[[], None]) -> None:
        """Sends a request. `act` repeats it if no response comes."""
        self.ops += 1
        client.waits = self.ops
        client.doing = doing
        doing()

    def answers(self, client: Client, op: int) -> bool:
        """Returns whether the client still waits for this response."""
        if client.waits != op:
            return False
        client.waits = client.doing = None
        return True

    def act(self, client: Client) -> None:
        if client.is_fenced:
            return
        if client.waits is not None:
            if self.random.random() < 0.1:
                assert client.doing is not None
                self.begin(client, client.doing)
        elif client.me is None:
            self.begin(client, lambda: self.init(client))
        elif client.attempt is None:
            client.attempt = Attempt(f"{client.transactional_id}/{len(self.attempts)}")
            self.attempts.append(client.attempt)
            client.sequences, client.ends = {}, None
        elif client.ends is None and (not client.attempt.writes or self.random.random() < 0.7):
            self.produce(client, self.random.choice(TOPIC_PARTITIONS))
        else:
            if client.ends is None:
                client.ends = self.random.random() < 0.7
            self.begin(client, lambda: self.end(client))

    def init(self, client: Client) -> None:
        op = self.ops

        def answered(token: Token) -> None:
            if not self.answers(client, op):
                return
            answer = self.world.replies[token]
            code = ErrorCode(answer.error_code)  # type: ignore[union-attr]
            if code is ErrorCode.NONE:
                client.me = Producer(answer.producer_id, answer.producer_epoch)  # type: ignore[union-attr]
            elif code not in WAIT_AGAIN:
                client.is_fenced = True

        expected = client.expected
        self.ask(
            lambda: self.world.send_init(client.transactional_id, expected, TIMEOUT_MS), answered
        )

    def produce(self, client: Client, partition_name: str) -> None:
        assert client.me is not None
        assert client.attempt is not None
        me, attempt = client.me, client.attempt
        sequence = client.sequences.get(partition_name, 0)
        value = f"{attempt.name}:{partition_name}:{sequence}"
        partition = self.partitions[partition_name]

        def send() -> None:
            op = self.ops
            self.wire.append(lambda: arrive(op))

        def arrive(op: int) -> None:
            header = partition.header(me, sequence)
            guard = partition.states.begin_verification(header, 0)
            if guard is None:
                done(op, partition.append(header, value, 0))
                return

            def verified(token: Token) -> None:
                (code,) = self.world.added(token).values()
                if code is ErrorCode.NONE:
                    code = partition.append(header, value, guard)
                done(op, code)

            self.ask(
                lambda: self.world.send_add(
                    client.transactional_id, me, [partition_name], version=5
                ),
                verified,
            )

        def done(op: int, code: ErrorCode) -> None:
            self.wire.append(lambda: acknowledged(op, code))

        def acknowledged(op: int, code: ErrorCode) -> None:
            if not self.answers(client, op):
                return
            if code is ErrorCode.NONE:
                client.sequences[partition_name] = sequence + 1
                attempt.writes.append((partition_name, value))
            elif code in WAIT_AGAIN or code is ErrorCode.INVALID_TXN_STATE:
                self.begin(client, send)
            elif client.ends is None:
                client.ends = False

        self.begin(client, send)

    def end(self, client: Client) -> None:
        assert client.me is not None
        assert client.attempt is not None
        op, me, attempt, commit = self.ops, client.me, client.attempt, bool(client.ends)
        attempt.is_to_commit |= commit

        def answered(token: Token) -> None:
            if not self.answers(client, op):
                return
            result = self.world.ended(token)
            if isinstance(result, Producer):
                attempt.fate = "committed" if commit else "aborted"
                client.me, client.attempt = result, None
                self.on_ended(client)
            elif result is ErrorCode.TRANSACTION_ABORTABLE:
                client.ends = False
            elif result not in WAIT_AGAIN:
                client.is_fenced = True

        self.ask(
            lambda: self.world.send_end(
                client.transactional_id, me, commit=commit, version=self.end_version
            ),
            answered,
        )

    def on_ended(self, client: Client) -> None:
        """Called when a client learns that its transaction has ended."""

    # Faults

    def step(self) -> None:
        self.settle()
        roll = self.random.random()
        if roll < 0.68:
            self.deliver()
        elif roll < 0.95:
            self.act(self.random.choice(self.clients))
        elif roll < 0.988:
            self.disturb()
        elif roll < 0.995:
            self.start_over(self.random.choice(self.clients))
        elif len(self.clients) < 6:
            self.add_client(self.random.choice(self.clients).transactional_id)
        self.pump()
        self.verify()

    def start_over(self, client: Client) -> None:
        """After an error the client asks for another epoch (KIP-360)."""
        if not client.is_fenced and client.waits is None and client.me is not None:
            client.expected, client.me, client.attempt = client.me, None, None

    def stop(self) -> None:
        for client in self.clients:
            client.is_fenced, client.waits = True, None

    def check(self) -> None:
        read = {
            partition_name: partition.committed()
            for partition_name, partition in self.partitions.items()
        }
        everything = [value for values in read.values() for value in values]
        assert len(everything) == len(set(everything)), "read twice"
        for attempt in self.attempts:
            found = [value for value in everything if value.startswith(f"{attempt.name}:")]
            wrote = [value for _, value in attempt.writes]
            if attempt.fate == "committed":
                assert sorted(found) == sorted(wrote), attempt
            elif attempt.fate == "aborted" or not attempt.is_to_commit:
                assert not found, attempt
            else:
                assert not found or set(wrote) <= set(found), attempt
        self.verify_nothing_hangs()


def walked(seed: int, steps: int = 700, kind: type[Walk] = Walk) -> Walk:
    walk = kind(seed)
    for _ in range(steps):
        walk.step()
    walk.stop()
    walk.heal(TIMEOUT_MS)
    walk.check()
    return walk


@pytest.mark.parametrize("seeds", [range(first, first + 10) for first in range(0, 40, 10)], ids=str)
def test_transactions_are_all_or_nothing(seeds: range) -> None:
    """Under all faults. The counts prove that enough transactions had each outcome."""
    fates: Counter[str] = Counter()
    for seed in seeds:
        walk = walked(seed)
        fates.update(attempt.fate for attempt in walk.attempts if attempt.writes)
    assert fates["committed"] > 25
    assert fates["aborted"] > 10
    assert fates["unknown"] > 5
