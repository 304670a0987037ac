"""Plays the scripts in `tests/scripts/share_state`: one partition of the share coordinator.

A line at the margin is an event, what follows is indented below it. The text above the first empty
line says what the script shows. A leader remembers its leader epoch, and what its last read
returned. Times are seconds since the start. Every request is appended and committed at once, unless
the script holds that. In the transcript, `epoch` alone is the state epoch. It is followed by the
start offset and the end offset of the window.

    snapshots after 3, trim after 20, trim step 5
                                        the settings, before anything else
    initialize jobs-0 epoch 1 at 0      a call of the group coordinator; at -1: the leader chooses
                                        the start offset; also: (call 1.4) of coordinator epoch 1
    delete jobs-0                       also: (call 1.4)
    anna reads jobs-0 in epoch 7        the leader of the partition in leader epoch 7
    anna writes jobs-0: 0-4 acknowledged, 5 available 2
                                        the number is a delivery count, 1 unless given; also:
                                        (start 3), (state epoch 2), (epoch 8)
    anna replaces jobs-0, cut at 3      the log has lost the records from 3 on
    summary jobs-0
    topic jobs is deleted
    hold turns, turn ends               changes of one turn are one append
    hold appends, commit, fail, append is late
    wait 25 h
    fail over                           another coordinator loads the log; also: fail over, append
                                        stored
    show                                what the coordinator has in memory
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import count

from groups.transcript import duration_ms
from penstock.coordination.effects import Append, CancelTimer, LogRecord, Now, Reply, SetTimer
from penstock.shares.formats import OrderNote, ReadNote, Snapshot, decode
from penstock.shares.image import Delta, ShareImage, StoredSpan
from penstock.shares.state_port import CallOrder, SharePartitionId
from penstock.shares.state_requests import (
    NEVER_READ,
    Delete,
    Initialize,
    Read,
    Replace,
    StateAnswer,
    StateRequest,
    Summarize,
    Write,
)
from penstock.shares.state_shard import Effect, FlushSoon, ShareShard, StateConfig, TrimLog
from penstock.shares.states import RecordState
from penstock.wire.errors import ErrorCode

from .partition_transcript import offsets_in, seconds, stored

TOPICS = {"jobs": bytes(15) + b"\1", "mail": bytes(15) + b"\2"}
NAMES = {topic_id: name for name, topic_id in TOPICS.items()}
WALL_MS = 1_000_000


@dataclass
class Leader:
    epoch: int = 0
    state_epoch: int = 0
    read_offset: int = NEVER_READ
    image: ShareImage | None = None


class Player:
    def __init__(self) -> None:
        self.config = StateConfig()
        self.now_ms = 0
        self.shard = self._new_shard()
        self.log: list[LogRecord] = []
        self.log_start = 0
        self.append: Append | None = None
        self.timers: dict[str, int] = {}
        self.leaders: dict[tuple[str, str], Leader] = {}
        self.holds_turns = self.holds_appends = False
        self.call = CallOrder(1, 0)
        self.output: list[str] = []
        self.tokens = count()
        where = r"(\w+-\d)"
        by = r"(?: \(call (\d+)\.(\d+)\))?"
        self.events: tuple[tuple[str, Callable[..., None]], ...] = (
            (r"snapshots after (\d+), trim after (\d+), trim step (\d+)", self._configure),
            (rf"initialize {where} epoch (\d+) at (-?\d+){by}", self._initialize),
            (rf"delete {where}{by}", self._delete),
            (rf"(\w+) reads {where} in epoch (\d+)", self._read),
            (rf"(\w+) writes {where}: ([^(]+)(?: \((.+)\))?", self._write),
            (rf"(\w+) replaces {where}, cut at (\d+)", self._replace),
            (rf"summary {where}", self._summarize),
            (r"topic (\w+) is deleted", self._delete_topic),
            (r"hold turns", self._hold_turns),
            (r"turn ends", self._end_turn),
            (r"hold appends", self._hold_appends),
            (r"commit", self._commit),
            (r"fail", self._fail),
            (r"append is late", self._be_late),
            (r"wait (\d+ \w+)", self._wait),
            (r"fail over(, append stored)?", self._fail_over),
            (r"show", self._show),
        )

    def play(self, line: str) -> list[str]:
        self.output = []
        for pattern, act in self.events:
            found = re.fullmatch(pattern, line)
            if found is not None:
                act(*found.groups())
                return self.output
        raise AssertionError(f"no such event: {line}")

    def say(self, text: str) -> None:
        self.output.append(f"{seconds(self.now_ms)}  {text}")

    @property
    def now(self) -> Now:
        return Now(self.now_ms, WALL_MS + self.now_ms)

    def _new_shard(self) -> ShareShard:
        return ShareShard(self.config, lambda: 1 << 20)

    def _configure(self, snapshots: str, trim: str, step: str) -> None:
        self.config = replace(
            self.config,
            snapshot_after=int(snapshots),
            trim_after=int(trim),
            trim_step=int(step),
        )
        self.shard = self._new_shard()

    # Requests

    def _ask(self, who: str, where: str, request: StateRequest) -> None:
        token = who, where, next(self.tokens)
        self._carry_out(self.shard.ask(request, token, self.now))

    def _order(self, epoch: str | None, number: str | None) -> CallOrder:
        if epoch is not None and number is not None:
            return CallOrder(int(epoch), int(number))
        self.call = self.call._replace(number=self.call.number + 1)
        return self.call

    def _initialize(
        self, where: str, epoch: str, start: str, call: str | None, number: str | None
    ) -> None:
        order = self._order(call, number)
        begun = Initialize(id_of(where), int(epoch), int(start), order)
        self._ask("group coordinator", where, begun)

    def _delete(self, where: str, call: str | None, number: str | None) -> None:
        self._ask("group coordinator", where, Delete(id_of(where), self._order(call, number)))

    def _read(self, who: str, where: str, epoch: str) -> None:
        self.leaders.setdefault((who, where), Leader()).epoch = int(epoch)
        self._ask(who, where, Read(id_of(where), int(epoch)))

    def _write(self, who: str, where: str, spans: str, given: str | None) -> None:
        leader = self.leaders.setdefault((who, where), Leader())
        options = dict(each.rsplit(" ", 1) for each in given.split(", ")) if given else {}
        epoch = int(options.pop("epoch", leader.epoch))
        state_epoch = int(options.pop("state epoch", leader.state_epoch))
        start = int(options.pop("start", 0))
        assert not options, f"no such options: {options}"
        changed = tuple(span_in(each) for each in spans.split(", "))
        delta = Delta(state_epoch, start, changed[-1].last + 1, epoch, changed)
        self._ask(who, where, Write(id_of(where), epoch, leader.read_offset, delta))

    def _replace(self, who: str, where: str, offset: str) -> None:
        leader = self.leaders[who, where]
        assert leader.image is not None
        image = leader.image.copy()
        image.truncate(int(offset))
        self._ask(who, where, Replace(id_of(where), leader.epoch, leader.read_offset, image))

    def _summarize(self, where: str) -> None:
        self._ask("operator", where, Summarize(id_of(where)))

    def _delete_topic(self, name: str) -> None:
        self._carry_out(self.shard.remove_topics({TOPICS[name]}, self.now))

    # What the shell does

    def _hold_turns(self) -> None:
        self.holds_turns = True

    def _hold_appends(self) -> None:
        self.holds_appends = True

    def _end_turn(self) -> None:
        self._carry_out(self.shard.on_turn_ended(self.now))

    def _taken(self) -> Append:
        append, self.append = self.append, None
        assert append is not None, "no append is under way"
        return append

    def _commit(self) -> None:
        append = self._taken()
        self.log += append.records
        self._carry_out(self.shard.on_committed(append.append_id, self.now))

    def _fail(self) -> None:
        error = ErrorCode.NOT_ENOUGH_REPLICAS
        self._carry_out(self.shard.on_append_failed(self._taken().append_id, error, self.now))

    def _be_late(self) -> None:
        assert self.append is not None, "no append is under way"
        self._carry_out(self.shard.on_append_late(self.append.append_id))

    def _wait(self, text: str) -> None:
        until = self.now_ms + duration_ms(text)
        while self.timers and min(self.timers.values()) <= until:
            key = min(self.timers, key=self.timers.__getitem__)
            self.now_ms = max(self.now_ms, self.timers.pop(key))
            self._carry_out(self.shard.on_timer(key, self.now))
        self.now_ms = until

    def _fail_over(self, is_stored: str | None) -> None:
        self._carry_out(self.shard.unload(ErrorCode.NOT_COORDINATOR))
        if is_stored:
            self.log += self._taken().records
        self.append = None
        self.timers.clear()
        self.shard = self._new_shard()
        for offset, record in enumerate(self.log[self.log_start :], self.log_start):
            self.shard.replay(record, offset)
        self._carry_out(self.shard.on_loaded(self.now))

    def _carry_out(self, effects: list[Effect]) -> None:
        asked = False
        for effect in effects:
            match effect:
                case FlushSoon():
                    asked = True
                case Append():
                    assert self.append is None, "one append at a time"
                    self.append = effect
                    self.shard.on_appended(len(self.log))
                    for offset, record in enumerate(effect.records, len(self.log)):
                        self.say(f"append at {offset}: {record_shown(record)}")
                case TrimLog(offset):
                    self.log_start = max(self.log_start, offset)
                    self.say(f"trim the log below {offset}")
                case SetTimer(key, at_ms):
                    self.timers[key] = at_ms
                    self.say(f"timer at {seconds(at_ms)}: {key}")
                case CancelTimer(key):
                    del self.timers[key]
                    self.say(f"no timer: {key}")
                case Reply((str() as who, str() as where, _), answer):
                    self._reply(who, where, answer)
                case _:
                    raise AssertionError(effect)
        if asked and not self.holds_turns:
            self._end_turn()
        if self.append is not None and not self.holds_appends:
            self._commit()

    def _reply(self, who: str, where: str, answer: StateAnswer) -> None:
        text = answer.code.name
        if answer.image is not None:
            leader = self.leaders[who, where]
            leader.image, leader.read_offset = answer.image, answer.read_offset
            leader.state_epoch = answer.image.state_epoch
            text += f", read at {answer.read_offset}: {image_shown(answer.image)}"
        if answer.summary is not None:
            epoch, leader_epoch, start, finished, _ = answer.summary
            text += f", epoch {epoch}, leader epoch {leader_epoch}, start {start}"
            text += f", {finished} done after it"
        elif who == "operator":
            text += ", no state"
        self.say(f"{who} <- {text}")

    def _show(self) -> None:
        states = list(self.shard.states.items())
        self.say(f"log {self.log_start}-{len(self.log)}, states: {len(states) or 'none'}")
        for share_partition, state in states:
            deleted = ", deleted" if state.deleted_ms else ""
            self.say(
                f"  {name_of(share_partition)}: leader epoch {state.leader_epoch}, "
                f"{image_shown(state.image)}{deleted}"
            )


def id_of(name: str) -> SharePartitionId:
    topic, _, index = name.partition("-")
    return SharePartitionId("g", TOPICS[topic], int(index))


def name_of(share_partition: SharePartitionId) -> str:
    return f"{NAMES[share_partition.topic_id]}-{share_partition.partition}"


def span_in(text: str) -> StoredSpan:
    place, state, *deliveries = text.split()
    delivered = int(deliveries[0]) if deliveries else 1
    return StoredSpan(*offsets_in(place), RecordState[state.upper()], delivered)


def image_shown(image: ShareImage) -> str:
    text = f"epoch {image.state_epoch}, {image.start_offset} to {image.end_offset}"
    return text + (f" [{stored(image.spans)}]" if image.spans else "")


def record_shown(record: LogRecord) -> str:
    share_partition, content = decode(record)
    match content:
        case None:
            text = "gone"
        case ReadNote(epoch):
            text = f"read in leader epoch {epoch}"
        case OrderNote(order):
            text = f"call {order.coordinator_epoch}.{order.number}"
        case Snapshot(image, leader_epoch, _, order, deleted_ms):
            text = "deletion" if deleted_ms else f"snapshot, {image_shown(image)}"
            text += f", leader epoch {leader_epoch}"
            text += f", call {order.coordinator_epoch}.{order.number}"
        case Delta():
            text = f"update, epoch {content.state_epoch}, start {content.start_offset} "
            text += f"[{stored(content.spans)}]"
    return f"{name_of(share_partition)} {text}"
