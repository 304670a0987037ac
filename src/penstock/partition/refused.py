"""Batches of idempotent producers that were refused for the moment, and must not be overtaken.

A producer has several batches on their way at once. If the first is refused, since its partition
is not led here as yet, or lacks replicas or space, and the cause goes away before the second comes,
then that one is out of turn:

- Where the producer is known by its earlier batches, its number is wrong. But to be told so means
  to some clients (librdkafka) that records are lost: they begin a new epoch and send again, under
  new numbers, whatever nobody has confirmed. What an earlier leader wrote of it is then doubled.
- Where it is not known, any number will do to begin with, as in Kafka (its records may be gone by
  retention). The second batch would be taken, and the first one could never be.

So the lowest number that was refused is remembered for each producer, and what comes after it is to
be sent again, too, until that one is back. The log's own word comes first: a batch that goes on
where the log ends is taken, whatever is remembered here. And nothing is remembered for long, since
a client may have given the batch up.

Another leader may have refused it, or have died with it: then it is `expect`ed here (`turns` says
when), once in a term.

Producers without numbers cannot be helped: with several batches on their way, retries reorder them.
Kafka's clients document that; one batch in flight, or idempotence, is the way out.
"""

from __future__ import annotations

from typing import Final

REMEMBERED_MS: Final = 10_000
PRODUCERS_MAX: Final = 1_000
_HALF: Final = 1 << 30


class RefusedBatches:
    """Of one partition."""

    __slots__ = ("_expected", "_lowest")

    def __init__(self) -> None:
        self._lowest: dict[tuple[int, int], tuple[int, int]] = {}
        """The sequence and when it was refused, by producer and its epoch, oldest first."""
        self._expected: dict[tuple[int, int], int] = {}
        """In which term one was waited for that others had refused."""

    def __bool__(self) -> bool:
        return bool(self._lowest)

    def note(self, producer_id: int, epoch: int, sequence: int, now_ms: int) -> None:
        """A batch was refused, and is to be sent again."""
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
        """A batch that was sent to an earlier leader may still come; in this term only once, so
        that what never comes is not waited for again and again."""
        key = producer_id, epoch
        if self._expected.get(key) == leader_epoch:
            return
        self._expected.pop(key, None)
        if len(self._expected) >= PRODUCERS_MAX:
            del self._expected[next(iter(self._expected))]
        self._expected[key] = leader_epoch
        self.note(producer_id, epoch, sequence, now_ms)

    def forget(self, producer_id: int, epoch: int) -> None:
        """A batch went on where the log ends: nothing is missing before the next."""
        self._lowest.pop((producer_id, epoch), None)

    def holds_back(self, producer_id: int, epoch: int, sequence: int, now_ms: int) -> bool:
        """Whether a batch must wait for one before it. One that need not ends the waiting."""
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
    """Sequences go round: after the largest comes 0."""
    return 0 < (other - sequence) % (1 << 31) < _HALF
