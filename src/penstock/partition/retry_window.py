"""Remembers batches of idempotent producers that were refused for a moment (the retry window).

A producer has several batches in flight. Suppose the first is refused because its partition has no
leadership here yet, or lacks replicas or disk space, and the cause goes away before the second
batch arrives. Then the second batch is out of sequence:

- If the partition knows the producer from earlier batches, the sequence is wrong. But some clients
  (librdkafka) take that error as a loss of records: they start a new epoch and send every
  unconfirmed record again under new sequences. Those that an earlier leader wrote are then
  duplicated.
- If it does not, any first sequence is accepted, as in Kafka (the producer's records may be gone by
  retention). The second batch would be accepted, and the first one could never be.

So the lowest refused sequence of each producer is remembered, and later batches are refused with a
retriable error, too, until that one arrives again. The log takes precedence: a batch that continues
the sequence in the log is accepted, whatever is remembered here. And entries expire soon, since the
client may have given the batch up.

The batch may also have been refused by another leader, or lost with it. Then it is `expect`ed here
(`sequence_gate` decides when), once per leadership.

Producers without sequences cannot be helped: with several batches in flight, retries reorder them.
Kafka's clients document that; the remedy is one batch in flight, or idempotence.
"""

from __future__ import annotations

from typing import Final

REMEMBERED_MS: Final = 10_000
"""How long a refused batch holds back the ones after it."""
PRODUCERS_MAX: Final = 1_000
_HALF: Final = 1 << 30


class RetryWindow:
    """The refused batches of one partition."""

    __slots__ = ("_expected", "_lowest")

    def __init__(self) -> None:
        self._lowest: dict[tuple[int, int], tuple[int, int]] = {}
        """(producer id, epoch) -> (lowest refused sequence, when it was refused), oldest first."""
        self._expected: dict[tuple[int, int], int] = {}
        """(producer id, epoch) -> the leader epoch in which `expect` was last called."""

    def __bool__(self) -> bool:
        return bool(self._lowest)

    def note(self, producer_id: int, epoch: int, sequence: int, now_ms: int) -> None:
        """Notes a batch that was refused and will be sent again."""
        key = producer_id, epoch
        held = self._lowest.get(key)
        if held is not None:
            if _is_fresh(held[1], now_ms) and not _is_before(sequence, held[0]):
                return
            del self._lowest[key]
        elif len(self._lowest) >= PRODUCERS_MAX:
            del self._lowest[next(iter(self._lowest))]
        self._lowest[key] = sequence, now_ms

    def expect(
        self, producer_id: int, epoch: int, sequence: int, leader_epoch: int, now_ms: int
    ) -> None:
        """Notes that a batch sent to an earlier leader may still arrive.

        It does so once per leader epoch, so that a batch that never arrives is not waited for
        repeatedly.
        """
        key = producer_id, epoch
        if self._expected.get(key) == leader_epoch:
            return
        self._expected.pop(key, None)
        if len(self._expected) >= PRODUCERS_MAX:
            del self._expected[next(iter(self._expected))]
        self._expected[key] = leader_epoch
        self.note(producer_id, epoch, sequence, now_ms)

    def forget(self, producer_id: int, epoch: int) -> None:
        """Forgets the producer's entry, because a batch continued the log's sequence."""
        self._lowest.pop((producer_id, epoch), None)

    def holds_back(self, producer_id: int, epoch: int, sequence: int, now_ms: int) -> bool:
        """Returns whether a batch must wait for an earlier one; if not, drops the entry."""
        key = producer_id, epoch
        held = self._lowest.get(key)
        if held is None:
            return False
        if _is_fresh(held[1], now_ms) and _is_before(held[0], sequence):
            return True
        del self._lowest[key]
        return False


def _is_fresh(noted_ms: int, now_ms: int) -> bool:
    return 0 <= now_ms - noted_ms <= REMEMBERED_MS


def _is_before(sequence: int, other: int) -> bool:
    """Returns whether a sequence precedes another; sequences wrap from 2**31 - 1 to 0."""
    return 0 < (other - sequence) % (1 << 31) < _HALF
