"""Checks what the members of share groups got, by the history of a run.

E36  A record whose acceptance or rejection was answered is never delivered again.
E37  While a member has a record locked, nobody gets it. The lock begins when the record arrives,
     and lasts for the time that the leader has said, counted from the request. It also ends with
     the member's session, when the member acknowledges the record, or when another leader loads
     the state. It does not end when the same leader loads the state again.

That a session lasts is certain only up to the last request in it that was answered.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from penstock.shares.states import AckType
from penstock.sim.checkers.logs import Violation
from penstock.sim.history import OK, Entry, ShareExchange, ShareLoad

_FINAL: Final = (AckType.ACCEPT, AckType.REJECT)
_ROUNDING_MS: Final = 2.0
_ANSWERED: Final = "NONE"

Where = tuple[str, str, int]
"""A group, a topic partition and an offset."""


class _Said(NamedTuple):
    """What a member said about a record."""

    exchange: ShareExchange
    kind: int
    code: str


@dataclass(slots=True)
class _Record:
    """Everything that happened to one record, in the order in which it ended."""

    deliveries: list[ShareExchange] = field(default_factory=list)
    said: list[_Said] = field(default_factory=list)


def check_shares(entries: Iterable[Entry]) -> Iterator[Violation]:
    records: dict[Where, _Record] = {}
    loads: dict[tuple[str, str], list[float]] = {}
    leaders: dict[tuple[str, str], int] = {}
    alive_ms: dict[str, float] = {}
    for entry in entries:
        if isinstance(entry, ShareLoad):
            key = entry.group, entry.partition_name
            if leaders.get(key) != entry.leader_epoch:
                leaders[key] = entry.leader_epoch
                loads.setdefault(key, []).append(entry.ended_ms)
        elif isinstance(entry, ShareExchange):
            if entry.status == OK and entry.session:
                last_ms = alive_ms.get(entry.session, entry.begun_ms)
                alive_ms[entry.session] = max(last_ms, entry.begun_ms)
            _sort_in(records, entry)
    for where, record in records.items():
        yield from _delivered_after_the_end(where, record)
        yield from _delivered_while_locked(where, record, loads.get(where[:2], []), alive_ms)


def _sort_in(records: dict[Where, _Record], exchange: ShareExchange) -> None:
    for partition_name, first, last, _ in exchange.delivered:
        for offset in range(first, last + 1):
            record = records.setdefault((exchange.group, partition_name, offset), _Record())
            record.deliveries.append(exchange)
    for partition_name, first, last, kind, code in exchange.acks:
        for offset in range(first, last + 1):
            record = records.setdefault((exchange.group, partition_name, offset), _Record())
            record.said.append(_Said(exchange, kind, code))


def _delivered_after_the_end(where: Where, record: _Record) -> Iterator[Violation]:
    final = [each for each in record.said if each.kind in _FINAL and each.code == _ANSWERED]
    if not final:
        return
    first = min(final, key=lambda each: each.exchange.ended_ms).exchange
    for exchange in record.deliveries:
        if exchange.begun_ms >= first.ended_ms:
            group, partition_name, offset = where
            text = (
                f"group {group}: {exchange.process} got offset {offset} in a request of "
                f"{exchange.begun_ms:.0f} ms, after {first.process} had settled it at "
                f"{first.ended_ms:.0f} ms"
            )
            yield Violation("E36", partition_name, text, offset)
            return


def _delivered_while_locked(
    where: Where, record: _Record, loads: list[float], alive_ms: dict[str, float]
) -> Iterator[Violation]:
    for holder in record.deliveries:
        if not holder.session:
            continue
        end_ms = min(_lock_end_ms(holder, record), alive_ms[holder.session])
        for other in record.deliveries:
            if (
                other is holder
                or other.broker != holder.broker
                or not holder.ended_ms < other.begun_ms
                or not other.ended_ms < end_ms
                or any(holder.begun_ms <= at_ms <= other.ended_ms for at_ms in loads)
            ):
                continue
            group, partition_name, offset = where
            text = (
                f"group {group}: {other.process} got offset {offset} at {other.ended_ms:.0f} ms, "
                f"while {holder.process} had it locked from {holder.ended_ms:.0f} to "
                f"{end_ms:.0f} ms"
            )
            yield Violation("E37", partition_name, text, offset)
            return


def _lock_end_ms(holder: ShareExchange, record: _Record) -> float:
    """Returns until when the lock of a delivery certainly lasts, if the session does."""
    end_ms = holder.begun_ms + holder.lock_ms
    own = [each for each in record.said if each.exchange.member_id == holder.member_id]
    for exchange, kind, code in sorted(own, key=lambda each: each.exchange.begun_ms):
        if exchange.begun_ms < holder.ended_ms:
            continue
        if kind != AckType.RENEW:
            return min(end_ms, exchange.begun_ms) - _ROUNDING_MS
        if code == _ANSWERED and exchange.begun_ms < end_ms:
            end_ms = max(end_ms, exchange.begun_ms + exchange.lock_ms)
    return end_ms - _ROUNDING_MS
