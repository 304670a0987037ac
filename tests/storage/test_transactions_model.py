"""Committed and uncommitted reads of a real log, compared with a model.

Hypothesis generates histories of transactions, restarts, kills, truncations, deletions and
compaction.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.records.record import Record, build_batch
from penstock.storage.cleaner import begin_clean
from penstock.storage.config import LogConfig
from penstock.storage.log import Log
from penstock.storage.verify import verify_directory

from .log_bench import NOW_MS, LogBench, new_bench, offsets_of
from .test_transactions import Writers, check_entries, committed, stable_of

Kind = Literal["plain", "data", "commit", "abort"]
PRODUCERS = (1, 2)
KEYS = (b"a", b"b")


@dataclass(frozen=True)
class Written:
    offset: int
    kind: Kind
    producer: int
    key: bytes


@dataclass
class Model:
    """Everything that was written and not truncated again."""

    history: list[Written] = field(default_factory=list)
    start: int = 0
    agreed: int = 0
    """Compaction relies on offsets below this being committed, so they are never truncated."""
    cleaned: int = 0

    @property
    def end(self) -> int:
        return self.history[-1].offset + 1 if self.history else 0

    def is_open(self, producer: int) -> bool:
        mine = [each for each in self.history if each.producer == producer]
        return bool(mine) and mine[-1].kind == "data"

    def fates(self) -> dict[int, bool | None]:
        """Returns whether each record is committed, or None if that is undecided."""
        found: dict[int, bool | None] = {}
        open_of: dict[int, list[int]] = {}
        for each in self.history:
            if each.kind == "plain":
                found[each.offset] = True
            elif each.kind == "data":
                found[each.offset] = None
                open_of.setdefault(each.producer, []).append(each.offset)
            else:
                for offset in open_of.pop(each.producer, []):
                    found[offset] = each.kind == "commit"
        return found

    def stable(self) -> int:
        undecided = [offset for offset, fate in self.fates().items() if fate is None]
        return max(min([*undecided, self.end]), self.start)

    def committed(self) -> list[int]:
        stable = self.stable()
        return [
            offset
            for offset, fate in self.fates().items()
            if fate and self.start <= offset < stable
        ]

    def newest_committed(self) -> set[int]:
        """Returns the newest committed offset of each key: compaction must have kept these."""
        fates, keys = self.fates(), {each.offset: each.key for each in self.history}
        newest = {keys[offset]: offset for offset, fate in fates.items() if fate}
        return {offset for offset in newest.values() if self.start <= offset < self.stable()}


Operation = tuple[str, int, int]
_PRODUCER = st.sampled_from(PRODUCERS)
_KEY = st.integers(0, len(KEYS) - 1)
_NONE = st.just(0)
OPERATIONS = st.one_of(
    st.tuples(st.just("write"), _PRODUCER, _KEY),
    st.tuples(st.sampled_from(["commit", "abort"]), _PRODUCER, _NONE),
    st.tuples(st.sampled_from(["whole_commit", "whole_abort"]), _PRODUCER, _KEY),
    st.tuples(st.just("plain"), _NONE, _KEY),
    st.tuples(st.sampled_from(["roll", "roll", "clean"]), _NONE, _NONE),
    st.tuples(st.sampled_from(["flush", "restart", "kill"]), _NONE, _NONE),
    st.tuples(st.sampled_from(["truncate", "delete"]), st.integers(1, 6), _NONE),
)

SURGERY = ("clean", "truncate", "restart", "kill")


class Player:
    """Applies the operations of a history to a log and to the model."""

    def __init__(self, *, compact: bool) -> None:
        self.bench: LogBench = new_bench()
        self.compact = compact
        self.log: Log = self.bench.create(LogConfig(compact=compact, delete_retention_ms=500))
        self.model = Model()
        self.writers = Writers(self.log)
        self.now_ms = NOW_MS

    def run_case(self, operation: Operation) -> None:
        name, first, second = operation
        self.now_ms += 300
        getattr(self, f"_{name}")(first, second)

    def _note(self, kind: Kind, producer: int, key: bytes = b"") -> None:
        offset = self.log.end_offset - 1
        self.model.history.append(Written(offset, kind, producer, key))

    def _write(self, producer: int, key: int) -> None:
        self.writers.write(producer, KEYS[key])
        self._note("data", producer, KEYS[key])

    def _plain(self, _: int, key: int) -> None:
        record = Record(0, NOW_MS, KEYS[key], b"%06d" % self.log.end_offset)
        self.log.append(build_batch([record]), 0, NOW_MS)
        self._note("plain", 0, KEYS[key])

    def _end(self, producer: int, *, commit: bool) -> None:
        if self.model.is_open(producer):
            self.writers.end(producer, commit=commit)
            self._note("commit" if commit else "abort", producer)

    def _commit(self, producer: int, _: int) -> None:
        self._end(producer, commit=True)

    def _abort(self, producer: int, _: int) -> None:
        self._end(producer, commit=False)

    def _whole_commit(self, producer: int, key: int) -> None:
        self._write(producer, key)
        self._end(producer, commit=True)

    def _whole_abort(self, producer: int, key: int) -> None:
        self._write(producer, key)
        self._end(producer, commit=False)

    def _roll(self, *_: int) -> None:
        self.log.roll(self.now_ms)

    def _flush(self, *_: int) -> None:
        self.log.flush(checkpoint=True)

    def _restart(self, *_: int) -> None:
        self._opened(self.bench.reopen(self.log))
        assert self.bench.report.clean

    def _kill(self, *_: int) -> None:
        self._opened(self.bench.kill_and_open())

    def _opened(self, log: Log) -> None:
        self.log = self.writers.log = log

    def _truncate(self, back: int, _: int) -> None:
        lowest = max(self.model.agreed, self.model.start)
        offset = max(lowest, self.model.end - back)
        if offset < self.model.end:
            self.log.truncate_to(offset)
            kept = [each for each in self.model.history if each.offset < offset]
            self.model.history = kept

    def _delete(self, forward: int, _: int) -> None:
        offset = min(self.model.start + forward, self.model.stable())
        self.model.start = self.log.delete_before(offset)

    def _clean(self, *_: int) -> None:
        if not self.compact:
            return
        self.log.roll(self.now_ms)
        self.log.flush(checkpoint=True)
        task = begin_clean(
            self.log,
            now_ms=self.now_ms,
            last_stable_offset=stable_of(self.log),
            map_bytes_max=1 << 16,
            force=True,
        )
        if task is None:
            return
        task.run()
        task.install(self.log)
        self.model.cleaned = self.log.cleaned_offset
        self.model.agreed = self.model.end

    def check(self) -> None:
        log, model = self.log, self.model
        assert (log.log_start_offset, log.end_offset) == (model.start, max(model.end, model.start))
        assert stable_of(log) == model.stable()
        check_entries(log)
        everything = [offset for offset in offsets_of(log) if offset >= model.start]
        if not model.cleaned:
            assert everything == [
                each.offset for each in model.history if each.offset >= model.start
            ]
        for bytes_max in (1, 150, 1 << 16):
            found = committed(log, bytes_max=bytes_max)
            if model.cleaned:
                assert set(found) <= set(model.committed())
                assert model.newest_committed() <= set(found)
                assert [each for each in found if each >= model.cleaned] == [
                    each for each in model.committed() if each >= model.cleaned
                ]
            else:
                assert found == model.committed()
        if model.end > model.start:
            middle = (model.start + model.end) // 2
            assert committed(log, middle, 1) == [each for each in found if each >= middle]


def _play(operations: list[Operation], *, compact: bool) -> None:
    player = Player(compact=compact)
    for operation in operations:
        player.run_case(operation)
        if operation[0] in SURGERY:
            player.check()
    player.check()
    player.run_case(("kill", 0, 0))
    player.check()
    player.run_case(("restart", 0, 0))
    player.check()
    player.log.close()
    assert verify_directory(player.bench.disk, player.bench.directory).sound


@settings(deadline=None, max_examples=150)
@given(st.lists(OPERATIONS, min_size=8, max_size=40))
def test_reads_agree_with_the_model(operations: list[Operation]) -> None:
    """Uncommitted reads return every record. Committed reads return those that were committed
    below the first undecided one. This holds for reads of any size, whatever happened to the
    log."""
    _play(operations, compact=False)


@settings(deadline=None, max_examples=150)
@given(st.lists(OPERATIONS, min_size=8, max_size=40))
def test_compaction_agrees_with_the_model(operations: list[Operation]) -> None:
    """It never removes the newest committed record of a key, never returns an aborted one, and
    changes nothing above the cleaned offset."""
    _play(operations, compact=True)
