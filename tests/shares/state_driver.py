"""Runs a shard of the share coordinator on a list of records. Tests settle its appends."""

from __future__ import annotations

from itertools import count

from penstock.coordination.effects import Append, CancelTimer, LogRecord, Now, Reply, SetTimer
from penstock.shares.image import Delta, ShareImage, StoredSpan
from penstock.shares.state_port import CallOrder, SharePartitionId
from penstock.shares.state_requests import (
    Initialize,
    Read,
    Replace,
    StateAnswer,
    StateRequest,
    Write,
)
from penstock.shares.state_shard import (
    Effect,
    FlushSoon,
    ShareShard,
    StateConfig,
    TrimLog,
)
from penstock.shares.states import RecordState
from penstock.shares.stored_states import StoredState, StoredStates
from penstock.wire.errors import ErrorCode

NOW = Now(5, 1_000_000)
TOPIC, OTHER_TOPIC = bytes(15) + b"\1", bytes(15) + b"\2"
JOBS = SharePartitionId("jobs", TOPIC, 0)
MAIL = SharePartitionId("mail", OTHER_TOPIC, 3)


def done(first: int, last: int, state_epoch: int = 1) -> Delta:
    spans = (StoredSpan(first, last, RecordState.ACKNOWLEDGED, 1),)
    return Delta(state_epoch, 0, last + 1, 1, spans)


def replayed(log: list[LogRecord], start: int = 0) -> StoredStates:
    shard = ShareShard(StateConfig(), lambda: 1_000_000)
    for offset, record in enumerate(log[start:], start):
        shard.replay(record, offset)
    return shard.states


def contents(states: StoredStates) -> dict[SharePartitionId, StoredState]:
    return dict(states.items())


class StateDriver:
    def __init__(self, config: StateConfig | None = None) -> None:
        self.config = config or StateConfig()
        self.shard = ShareShard(self.config, lambda: 1_000_000)
        self.log: list[LogRecord] = []
        self.log_start = 0
        self.append: Append | None = None
        self.answers: dict[int, StateAnswer] = {}
        self.flushes = 0
        self.timers: dict[str, int] = {}
        self._tokens = count()
        self._calls = count()

    # Requests

    def ask(self, request: StateRequest) -> int:
        """Returns the token. `answers` has the answer when there is one."""
        token = next(self._tokens)
        self.carry_out(self.shard.ask(request, token, NOW))
        return token

    def do(self, request: StateRequest) -> StateAnswer:
        """Asks, and commits what is to be appended."""
        token = self.ask(request)
        self.end_turn()
        if self.append is not None:
            self.commit()
        return self.answers[token]

    def begin(self, where: SharePartitionId = JOBS, state_epoch: int = 1, start: int = 0) -> None:
        begun = Initialize(where, state_epoch, start, self.next_order())
        assert self.do(begun).code == ErrorCode.NONE

    def next_order(self) -> CallOrder:
        """Returns the order of the next call of the group coordinator."""
        return CallOrder(1, next(self._calls))

    def read(self, where: SharePartitionId = JOBS, leader_epoch: int = 7) -> StateAnswer:
        return self.do(Read(where, leader_epoch))

    def writer(self, where: SharePartitionId = JOBS, leader_epoch: int = 7) -> Leader:
        answer = self.read(where, leader_epoch)
        assert answer.code == ErrorCode.NONE
        return Leader(where, leader_epoch, answer.read_offset)

    # What the shell does

    def carry_out(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case FlushSoon():
                    self.flushes += 1
                case Append():
                    assert self.append is None, "one append at a time"
                    self.append = effect
                    self.shard.on_appended(len(self.log))
                case TrimLog():
                    assert effect.offset <= len(self.log)
                    self.log_start = max(self.log_start, effect.offset)
                case SetTimer():
                    self.timers[effect.key] = effect.at_ms
                case CancelTimer():
                    del self.timers[effect.key]
                case Reply():
                    assert isinstance(effect.token, int)
                    assert effect.token not in self.answers, "one answer"
                    self.answers[effect.token] = effect.answer

    def end_turn(self) -> None:
        self.carry_out(self.shard.on_turn_ended(NOW))

    def commit(self) -> None:
        append, self.append = self.append, None
        assert append is not None
        self.log += append.records
        self.carry_out(self.shard.on_committed(append.append_id, NOW))

    def fail(self, error: ErrorCode = ErrorCode.NOT_ENOUGH_REPLICAS) -> None:
        append, self.append = self.append, None
        assert append is not None
        self.carry_out(self.shard.on_append_failed(append.append_id, error, NOW))

    def be_late(self) -> None:
        assert self.append is not None
        self.carry_out(self.shard.on_append_late(self.append.append_id))

    def fire(self) -> None:
        timers, self.timers = self.timers, {}
        for key in timers:
            self.carry_out(self.shard.on_timer(key, NOW))

    def fail_over(self, *, with_append: bool = False) -> None:
        """Another coordinator loads the log. It may have the append that is under way."""
        self.carry_out(self.shard.unload(ErrorCode.NOT_COORDINATOR))
        if self.append is not None and with_append:
            self.log += self.append.records
        self.append, self.timers = None, {}
        self.shard = ShareShard(self.config, lambda: 1_000_000)
        for offset, record in enumerate(self.log[self.log_start :], self.log_start):
            self.shard.replay(record, offset)
        self.carry_out(self.shard.on_loaded(NOW))

    def image(self, where: SharePartitionId = JOBS) -> ShareImage:
        state = self.shard.states.get(where)
        assert state is not None
        return state.image


class Leader:
    """A leader of a partition that has read the state."""

    def __init__(self, where: SharePartitionId, leader_epoch: int, read_offset: int) -> None:
        self.where = where
        self.leader_epoch = leader_epoch
        self.read_offset = read_offset

    def write(self, delta: Delta) -> Write:
        return Write(self.where, self.leader_epoch, self.read_offset, delta)

    def replace(self, image: ShareImage) -> Replace:
        return Replace(self.where, self.leader_epoch, self.read_offset, image)
