"""The random walk with producers that do not know transaction.version 2.

They use one epoch for many transactions. They add partitions themselves, leaders verify that they
did, and sequences continue from transaction to transaction. A producer that gives up on a batch
aborts and asks for another epoch. Such producers are not safe from an EndTxn or a marker that
arrives late, so here none does. Batches do arrive late, and so do the responses to leaders that
verify them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial

import pytest

from penstock.coordination.effects import Token
from penstock.coordination.invariants import InvariantViolated
from penstock.partition.guards import Guards
from penstock.txns.transaction import Producer
from penstock.wire.errors import ErrorCode

from .test_walk import WAIT_AGAIN, Client, Walk, walked


class OlderWalk(Walk):
    end_version = 4

    def __init__(self, seed: int) -> None:
        self.gave_up: set[int] = set()
        self.numbers: dict[tuple[int, Producer, str], int] = {}
        super().__init__(seed)
        self.late_share = 0.0

    def act(self, client: Client) -> None:
        if client.waits is None or client.is_fenced:
            super().act(client)
        elif client.attempt is None:
            if self.random.random() < 0.1:
                assert client.doing is not None
                self.begin(client, client.doing)
        elif client.ends is None and self.random.random() < 0.1:
            self.give_up(client)

    def give_up(self, client: Client) -> None:
        client.waits = client.doing = None
        client.ends = False
        self.gave_up.add(client.number)

    def on_ended(self, client: Client) -> None:
        if client.number in self.gave_up:
            self.gave_up.discard(client.number)
            self.start_over(client)

    def append(
        self,
        client: Client,
        partition_name: str,
        me: Producer,
        sequence: int,
        value: str,
        done: Callable[[ErrorCode], None],
    ) -> None:
        """Appends a batch that has arrived at its partition, and verifies its transaction first."""
        partition = self.partitions[partition_name]
        header = partition.header(me, sequence)
        guard = partition.states.begin_verification(header, 0)

        def write(guard: int) -> ErrorCode:
            return partition.append(header, value, guard, numbers_from_zero=False)

        def verified(token: Token) -> None:
            if self.random.random() < 0.3:
                self.late.append(partial(write_verified, token))
            else:
                write_verified(token)

        def write_verified(token: Token) -> None:
            assert guard is not None
            (code,) = self.world.added(token).values()
            done(write(guard) if code is ErrorCode.NONE else code)

        if guard is None:
            done(write(0))
            return
        self.ask(
            lambda: self.world.send_add(
                client.transactional_id, me, [partition_name], version=5, verify_only=True
            ),
            verified,
        )

    def produce(self, client: Client, partition_name: str) -> None:
        assert client.me is not None
        assert client.attempt is not None
        me, attempt = client.me, client.attempt
        key = client.number, me, partition_name
        sequence = self.numbers.get(key, 0)
        value = f"{attempt.name}:{partition_name}:{sequence}"

        def add() -> None:
            op = self.ops
            self.ask(
                lambda: self.world.send_add(
                    client.transactional_id, me, [partition_name], version=3
                ),
                lambda token: added(op, token),
            )

        def added(op: int, token: Token) -> None:
            if not self.answers(client, op):
                return
            (code,) = self.world.added(token).values()
            if code is ErrorCode.NONE:
                self.begin(client, send)
            elif code in WAIT_AGAIN:
                self.begin(client, add)
            else:
                client.ends = False

        def send() -> None:
            op = self.ops
            self.wire.append(
                lambda: self.append(client, partition_name, me, sequence, value, partial(done, op))
            )

        def done(op: int, code: ErrorCode) -> None:
            self.wire.append(lambda: acknowledged(op, code))

        def acknowledged(op: int, code: ErrorCode) -> None:
            if not self.answers(client, op):
                return
            if code is ErrorCode.NONE:
                self.numbers[key] = sequence + 1
                attempt.writes.append((partition_name, value))
            elif code in WAIT_AGAIN or code is ErrorCode.INVALID_TXN_STATE:
                self.begin(client, send)
            else:
                self.give_up(client)

        self.begin(client, add)


@pytest.mark.parametrize("seeds", [range(first, first + 10) for first in range(0, 30, 10)], ids=str)
def test_transactions_are_all_or_nothing(seeds: range) -> None:
    """Under all faults. The counts prove that enough transactions were committed and aborted."""
    fates: Counter[str] = Counter()
    for seed in seeds:
        walk = walked(seed, kind=OlderWalk)
        fates.update(attempt.fate for attempt in walk.attempts if attempt.writes)
    assert fates["committed"] > 10
    assert fates["aborted"] > 3


def test_the_walk_fails_without_guards(monkeypatch: pytest.MonkeyPatch) -> None:
    """If guards were always valid, a batch that was verified and then overtaken by its marker
    would open a hanging transaction."""
    monkeypatch.setattr(Guards, "holds", lambda self, producer_id, number: True)
    for seed in range(60):
        try:
            walked(seed, kind=OlderWalk)
        except (AssertionError, InvariantViolated):
            return
    pytest.fail("it went unnoticed")
