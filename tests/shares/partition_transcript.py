"""Plays the scripts in `tests/scripts/share_partition`: one share partition and its members.

A line at the margin is an event. The machine's effects are indented below it, in order. The text
above the first empty line says what the script shows. Times are seconds since the start.

The state log commits every write at once, unless the script holds it. A fetch reads the log where
the machine says; the number after each range is its delivery count.

    limit 2, window 10, lock 30 s       settings, at the beginning or later; also: no renew,
                                        dead letters
    append 5                            a batch of five records; also: append 1 control,
                                        append 2 aborted
    hole 3                              three offsets without a record, as after compaction
    compaction removes 1                the batch at this offset
    anna fetches                        also: at most 3 (whole batches), exactly 3
    anna accepts 0-1, releases 2, rejects 3, gaps 4
                                        one request; also: renews 0-1
    anna sends 0-3 as 1 2 3 0           the types as numbers; also: (renew)
    anna's session ends
    log starts at 4
    hold writes, commit, fail           fail: the write will never be in the state log
    wait 30 s
    letters written 0, 1                the dead letters of these records are stored
    fail over                           a new leader loads the state log, without the writes that
                                        are held; also: fail over, 1 write stored
    fail over, records from 2 on are lost
                                        an unclean election
    read again, 1 write stored          the leader itself does, and keeps its locks
    show, show stored                   the window; what a new leader would load
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from penstock.coordination.effects import SetTimer
from penstock.shares.events import (
    AckBatch,
    Acknowledge,
    Acknowledged,
    Acquire,
    Acquired,
    BatchKind,
    DeadLettersWritten,
    Effect,
    SettingsChanged,
    TakeProducerId,
    WakeFetches,
    Write,
    WriteDeadLetters,
)
from penstock.shares.image import StoredSpan
from penstock.shares.spans import Span
from penstock.shares.states import AckType, AcquireMode

from .driver import ALL, Driver

VERBS = {
    "accepts": AckType.ACCEPT,
    "releases": AckType.RELEASE,
    "rejects": AckType.REJECT,
    "gaps": AckType.GAP,
    "renews": AckType.RENEW,
}


class Player(Driver):
    def __init__(self) -> None:
        super().__init__()
        self.output: list[str] = []
        self.begin_ms = self.ticks_ms
        self.shown_start = 0
        self.requests = 0
        name = r"(\w+)"
        self.events: tuple[tuple[str, Callable[..., None]], ...] = (
            (r"append (\d+)(?: (\w+))?", self._append),
            (r"hole (\d+)", lambda count: self.leave_hole(int(count))),
            (r"compaction removes (\d+)", self._compact),
            (rf"{name} fetches(?: (at most|exactly) (\d+))?", self._fetch),
            (rf"{name} sends (.+?) as ([\d ]+)( \(renew\))?", self._send),
            (rf"{name} ((?:{'|'.join(VERBS)}) .+)", self._acknowledge),
            (rf"{name}'s session ends", self.end_session),
            (r"log starts at (\d+)", lambda offset: self.move_log_start(int(offset))),
            (r"hold writes", self._hold),
            (r"commit", lambda: self._settle(self.commit)),
            (r"fail", lambda: self._settle(self.fail)),
            (r"wait (\d+) (m?s)", self._wait),
            (r"letters written ([\d, ]+)", self._letters_written),
            (r"fail over", self.fail_over),
            (r"fail over, (\d+) writes? stored", lambda count: self.fail_over(written=int(count))),
            (r"fail over, records from (\d+) on are lost", self._lose),
            (
                r"read again, (\d+) writes? stored",
                lambda count: self.load_again(written=int(count)),
            ),
            (r"show", self._show),
            (r"show stored", self._show_stored),
        )

    def play(self, line: str) -> list[str]:
        self.output = []
        self.answers.clear()
        for pattern, act in self.events:
            found = re.fullmatch(pattern, line)
            if found is not None:
                act(*found.groups())
                break
        else:
            self._settings(line)
        self._show_start()
        return self.output

    def say(self, text: str) -> None:
        self.output.append(f"{seconds(self.ticks_ms - self.begin_ms)}  {text}")

    def _show_start(self) -> None:
        start = self.machine.start_offset
        if start != self.shown_start:
            self.say(f"start {self.shown_start} -> {start}")
        self.shown_start = start

    # The beginning, and the log

    def _settings(self, line: str) -> None:
        settings = self.settings
        for part in line.split(", "):
            words = part.split()
            match words:
                case ["limit", count]:
                    settings = replace(settings, delivery_limit=int(count))
                case ["window", count]:
                    settings = replace(settings, in_flight_max=int(count))
                case ["lock", count, "s"]:
                    settings = replace(settings, record_lock_ms=int(count) * 1000)
                case ["no", "renew"]:
                    settings = replace(settings, renew_enabled=False)
                case ["dead", "letters"]:
                    settings = replace(settings, dead_letter_topic="dlq.jobs")
                case _:
                    raise AssertionError(f"no such event: {line}")
        self.settings = settings
        self.handle(SettingsChanged(settings))

    def _append(self, count: str, kind: str | None) -> None:
        self.append(int(count), BatchKind(kind or "data"))

    def _compact(self, offset: str) -> None:
        self.log = [batch for batch in self.log if batch.first != int(offset)]

    # Members

    def _token(self, member: str) -> tuple[str, int]:
        self.requests += 1
        return member, self.requests

    def _fetch(self, member: str, mode: str | None, count: str | None) -> None:
        offset = self.machine.next_fetch_offset(self.now)
        if offset is None:
            self.say("nothing can be acquired, and the window is full")
            return
        exact = AcquireMode.RECORD_LIMIT if mode == "exactly" else AcquireMode.BATCH_OPTIMIZED
        limit = ALL if count is None else int(count)
        batches = self.read(offset)
        self.handle(Acquire(self._token(member), member, offset, batches, limit, mode=exact))

    def _acknowledge(self, member: str, text: str) -> None:
        batches: list[AckBatch] = []
        is_renew = False
        kind = AckType.ACCEPT
        for part in text.split(", "):
            first, _, rest = part.partition(" ")
            if first in VERBS:
                kind = VERBS[first]
            is_renew = is_renew or kind is AckType.RENEW
            named = rest if first in VERBS else part
            batches.append(AckBatch(*offsets_in(named), (int(kind),)))
        self.handle(Acknowledge(self._token(member), member, tuple(batches), is_renew))

    def _send(self, member: str, ranges: str, types: str, renew: str | None) -> None:
        numbers = tuple(map(int, types.split()))
        batches = tuple(AckBatch(*offsets_in(each), numbers) for each in ranges.split(", "))
        self.handle(Acknowledge(self._token(member), member, batches, renew is not None))

    # Writes and time

    def _hold(self) -> None:
        self.holds_writes = True

    def _settle(self, end: Callable[[], None]) -> None:
        assert self.writes, "no write is under way"
        end()

    def _wait(self, count: str, unit: str) -> None:
        self.wait(int(count) * (1000 if unit == "s" else 1))

    def _lose(self, offset: str) -> None:
        self.log = [batch for batch in self.log if batch.last < int(offset)]
        self.log_end = int(offset)
        self.fail_over(truncate_to=int(offset))

    def _letters_written(self, written: str) -> None:
        self.handle(DeadLettersWritten(tuple(map(int, written.split(", ")))))

    # Output

    def _show(self) -> None:
        at = f"{self.machine.start_offset}-{self.machine.end_offset}"
        self.say(f"window {at}{'' if self.machine.spans else ', empty'}")
        for span in self.machine.spans:
            self.say(f"  {self._span(span)}")

    def _span(self, span: Span) -> str:
        text = shown(span.first, span.last, span.state.name, span.delivery_count)
        if span.owner is not None:
            text += f" by {span.owner} until {seconds(span.lock_until_ms - self.begin_ms)}"
        if span.change is not None:
            text += f", soon {span.change.state.name}"
        return text

    def _show_stored(self) -> None:
        image = self.replayed()
        at = f"{image.start_offset}-{image.end_offset}"
        self.say(f"stored {at}{'' if image.spans else ', nothing else'}")
        for span in image.spans:
            self.say(f"  {stored([span])}")

    def _carry_out(self, effects: Sequence[Effect]) -> None:
        for effect in effects:
            self._say_effect(effect)
        super()._carry_out(effects)

    def _say_effect(self, effect: Effect) -> None:
        match effect:
            case Acquired((member, _), ranges):
                given = " ".join(f"{offsets(*each[:2])} ({each[2]})" for each in ranges)
                self.say(f"{member} <- {given or 'no records'}")
            case Acknowledged((member, _), error):
                self.say(f"{member} <- {error.name}")
            case Write(write_id, delta):
                self.say(f"write {write_id}: start {delta.start_offset}; {stored(delta.spans)}")
            case WakeFetches():
                self.say("wake fetches")
            case SetTimer():
                self.say(f"timer at {seconds(effect.at_ms - self.begin_ms)}")
            case WriteDeadLetters():
                letters = "; ".join(
                    f"{one.offset} number {one.sequence} ({one.delivery_count}) {one.reason.name}"
                    for one in effect.letters
                )
                self.say(f"write dead letters: {letters}")
            case TakeProducerId():
                self.say("take a producer id")
            case _:
                raise AssertionError(effect)


def seconds(milliseconds: int) -> str:
    return f"{milliseconds / 1000:.3f}"


def offsets_in(text: str) -> tuple[int, int]:
    first, _, last = text.partition("-")
    return int(first), int(last or first)


def offsets(first: int, last: int) -> str:
    return str(first) if first == last else f"{first}-{last}"


def shown(first: int, last: int, state: str, count: int) -> str:
    return f"{offsets(first, last)} {state} ({count})"


def stored(spans: Iterable[StoredSpan]) -> str:
    return "; ".join(
        shown(span.first, span.last, span.state.name, span.delivery_count) for span in spans
    )
