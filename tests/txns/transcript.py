"""Plays the scripts in `tests/scripts/txns`. A line at the margin is an event; the effects that it
causes are indented below it. The text above the first empty line says what the script shows.

Producers remember what they are told, as real ones do: their producer id and epoch. The log commits
at once, producer ids are allocated at once and partitions write their markers at once, unless the
script holds them. Times are seconds since the start. The transactional id is `pay` unless another
one is named with (id other).

    config transaction_version=1       settings of the coordinator, before anything else
    P inits                            InitProducerId without an id: P takes over; also:
                                       (timeout 10 s), (v3)
    P bumps its epoch                  InitProducerId with the id and epoch that P has (KIP-360)
    P adds orders-0 orders-1           AddPartitionsToTxn, sent by the producer; also: (v1)
    P writes orders-0                  AddPartitionsToTxn, sent by the leader of the partition that
                                       P writes to; also: (verify) to ask without adding
    P adds offsets                     AddOffsetsToTxn; also: (v1)
    P ends (commit), P ends (abort)    EndTxn; also: (v4), before transaction.version 2
    D commits P Q, D aborts P Q        ends the transactions of P and Q together (multi-commit);
                                       also: (with offsets)
    describe pay
    list, list (Ongoing)               also: (longer than 5 s), (producer 1000), (pattern pay.*)
    wait 60000 ms
    log holds, log commits, log fails CODE, log is late
    ids hold, ids are allocated, ids fail CODE
    markers hold, markers written, marker of orders-0 written, marker of orders-0 fails CODE
    delete orders-0                    the partition is deleted
    skip pay to epoch 32766            as if pay had used all epochs before
    coordinator crashes                another broker loads the log, and requests that wait get no
                                       answer; also: (append survives) if the log has what was held
    coordinator moves                  the same, but requests that wait are answered first

A request can also have (lost), if its answer never arrives, and (epoch 7) or (producer 7), to be
wrong or late.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from groups.transcript import code_name, duration_ms
from penstock.coordination.effects import LogRecord, Reply, Token
from penstock.topic_partition import TopicPartition
from penstock.txns.config import TransactionConfig
from penstock.txns.effects import AllocateProducerIds, Answer, Effect, EndedTogether, SendMarkers
from penstock.txns.formats import read_record, transaction_record
from penstock.txns.image import ShardImage
from penstock.txns.shard import TransactionShard
from penstock.txns.transaction import NO_EPOCH, NO_PRODUCER_ID, Producer, Transaction
from penstock.wire.codec import encode
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import (
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnResponse,
    DescribeTransactionsResponse,
    EndTxnResponse,
    InitProducerIdResponse,
    ListTransactionsRequest,
    ListTransactionsResponse,
)

from .world import EPOCH_MS, NONE, OFFSETS, World, at

STATES = {"Empty", "Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort"}
FLAGS = {"abort", "append survives", "commit", "lost", "verify", "with offsets"} | STATES
NAMED = "(epoch|id|longer than|pattern|producer|timeout|version) (.+)"
BUMPS_SINCE = 5


@dataclass
class Client:
    name: str
    transactional_id: str = "pay"
    producer: Producer | None = None


@dataclass(frozen=True)
class Asked:
    """A request that waits: what is needed to show its answer."""

    who: str
    what: str
    version: int = 0
    is_lost: bool = False


@dataclass
class Options:
    """The words in parentheses after an event. An unknown one is an error."""

    flags: set[str] = field(default_factory=set)
    named: dict[str, str] = field(default_factory=dict)

    @classmethod
    def read(cls, text: str) -> Options:
        options = cls()
        for short in filter(None, text.split(", ")):
            option = re.sub(r"^v(\d+)$", r"version \1", short)
            if option in FLAGS:
                options.flags.add(option)
            elif named := re.fullmatch(NAMED, option):
                options.named[named[1]] = named[2]
            else:
                raise ValueError(f"unknown option {option!r}")
        return options

    def number(self, name: str, default: int) -> int:
        return int(self.named.get(name, default))


def names(partitions: Iterable[TopicPartition]) -> str:
    return " ".join(f"{where.topic}-{where.partition}" for where in sorted(partitions))


def show_transaction(transaction: Transaction) -> str:
    last, next_id = transaction.last, transaction.next_producer_id
    shown = f"{transaction.transactional_id} {transaction.state.title} "
    shown += f"producer {transaction.producer_id} epoch {transaction.producer_epoch}"
    if last is not None:
        rotated = last.producer_id != transaction.producer_id
        shown += f" (last {f'producer {last.producer_id} ' if rotated else ''}epoch {last.epoch})"
    if next_id != NO_PRODUCER_ID:
        shown += f" (next producer {next_id})"
    return f"{shown} {names(transaction.partitions)}".rstrip()


def show_record(record: LogRecord) -> str:
    entry = read_record(record.key, record.value)
    assert entry is not None
    if entry.transaction is None:
        return f"{entry.transactional_id} removed"
    return show_transaction(entry.transaction)


class TranscriptWorld(World):
    """A world that says what it carries out."""

    def __init__(
        self,
        config: TransactionConfig,
        say: Callable[[str], None],
        on_reply: Callable[[Token, Answer], None],
    ) -> None:
        self.say = say
        self.on_reply = on_reply
        self.states: dict[str, str] = {}
        self._is_loading = False
        self._depth = 0
        super().__init__(config)
        self.additions_wait = True

    def _new_shard(self) -> TransactionShard:
        self._is_loading = True
        return super()._new_shard()

    def carry_out(self, effects: list[Effect]) -> None:
        if self._is_loading:
            self._is_loading = False
            for transaction in self.shard.state.image.transactions.values():
                self.say(f"loaded: {show_transaction(transaction)}")
        self._depth += 1
        for effect in effects:
            self._tell(effect)
        super().carry_out(effects)
        self._depth -= 1
        if not self._depth:
            self._tell_states()

    def _tell(self, effect: Effect) -> None:
        match effect:
            case Reply(token, answer):
                self.on_reply(token, answer)
            case AllocateProducerIds(_, count):
                self.say(f"ids: allocate {count}")
            case SendMarkers(_, marker, partitions):
                result = "commit" if marker.committed else "abort"
                self.say(
                    f"markers: {result} producer {marker.producer_id} "
                    f"epoch {marker.producer_epoch} to {names(partitions)} "
                    f"(version {marker.transaction_version}, "
                    f"coordinator epoch {marker.coordinator_epoch})"
                )

    def _tell_states(self) -> None:
        states = {
            each.transactional_id: each.transaction_state
            for each in self.shard.list_transactions(ListTransactionsRequest(), self.now)
        }
        for name in sorted(states.keys() | self.states.keys()):
            before, after = self.states.get(name, "-"), states.get(name, "-")
            if before != after:
                self.say(f"{name}: {before} -> {after}")
        self.states = states

    def verify(self) -> None:
        """Checks the invariants, and that a broker that loads the log now gets the same state."""
        self.shard.verify()
        image = ShardImage()
        for record in self.log:
            image.replay(record.key, record.value)
        assert image.transactions == self.shard.state.image.transactions

    def settle_one(self) -> None:
        records = self.waiting[0].records
        if self.fails_log is None:
            for number, record in enumerate(records, 1):
                part = f" ({number} of {len(records)})" if len(records) > 1 else ""
                self.say(f"log{part}: {show_record(record)}")
        super().settle_one()

    def report_late(self) -> None:
        for append in self.waiting:
            self.carry_out(self.shard.on_append_late(append.append_id))

    def answer_marker(self, where: TopicPartition, code: ErrorCode) -> None:
        sent = next(each for each in self.sent if where in each.partitions)
        left = tuple(each for each in sent.partitions if each != where)
        position = self.sent.index(sent)
        self.sent[position : position + 1] = [replace(sent, partitions=left)] if left else []
        answers = {where: code}
        self.carry_out(self.shard.on_markers(sent.transactional_id, sent.marker, answers, self.now))


class Player:
    def __init__(self) -> None:
        self.output: list[str] = []
        self.clients: dict[str, Client] = {}
        self.asked: dict[Token, Asked] = {}
        self.world = TranscriptWorld(TransactionConfig(), self.say, self._on_reply)

    def play(self, line: str) -> list[str]:
        self.output = []
        text, _, rest = line.partition(" (")
        options, words = Options.read(rest.removesuffix(")")), text.split()
        event = getattr(self, f"_event_{words[0]}", None)
        if event is not None:
            event(words[1:], options)
        else:
            client = self.clients.setdefault(words[0], Client(words[0]))
            client.transactional_id = options.named.get("id", client.transactional_id)
            getattr(self, f"_client_{words[1]}")(client, words[2:], options)
        self.world.verify()
        return self.output

    def say(self, text: str) -> None:
        self.output.append(f"    {self.world.ticks_ms / 1000:.3f}  {text}")

    # What producers and leaders send

    def _note(self, who: str, what: str, options: Options, version: int = 0) -> int:
        """Remembers the request that is sent next, and returns its version."""
        asked = Asked(who, what, options.number("version", version), "lost" in options.flags)
        self.asked[self.world.asked + 1] = asked
        return asked.version

    def _producer(self, client: Client, options: Options) -> Producer:
        producer = client.producer or Producer(NO_PRODUCER_ID, NO_EPOCH)
        return Producer(
            options.number("producer", producer.producer_id),
            options.number("epoch", producer.epoch),
        )

    def _client_inits(self, client: Client, words: Sequence[str], options: Options) -> None:
        self._init(client, None, options)

    def _client_bumps(self, client: Client, words: Sequence[str], options: Options) -> None:
        assert words == ["its", "epoch"], words
        self._init(client, self._producer(client, options), options)

    def _init(self, client: Client, expected: Producer | None, options: Options) -> None:
        timeout_ms = duration_ms(options.named.get("timeout", "60 s"))
        version = self._note(client.name, "init", options, 5)
        self.world.send_init(client.transactional_id, expected, timeout_ms, version)

    def _client_adds(self, client: Client, words: Sequence[str], options: Options) -> None:
        producer = self._producer(client, options)
        if words == ["offsets"]:
            version = self._note(client.name, "add offsets", options, 4)
            self.world.send_add_offsets(client.transactional_id, producer, version)
        else:
            version = self._note(client.name, "add", options, 3)
            self.world.send_add(client.transactional_id, producer, words, version)

    def _client_writes(self, client: Client, words: Sequence[str], options: Options) -> None:
        verifies = "verify" in options.flags
        version = self._note("leader", "verify" if verifies else "add", options, 5)
        producer = self._producer(client, options)
        self.world.send_add(client.transactional_id, producer, words, version, verifies)

    def _client_ends(self, client: Client, words: Sequence[str], options: Options) -> None:
        (result,) = options.flags & {"commit", "abort"}
        version = self._note(client.name, "end", options, BUMPS_SINCE)
        self.world.send_end(
            client.transactional_id,
            self._producer(client, options),
            commit=result == "commit",
            version=version,
        )

    def _client_commits(self, client: Client, words: Sequence[str], options: Options) -> None:
        self._note(client.name, "commit", options)
        offsets = OFFSETS if "with offsets" in options.flags else None
        self.world.send_end_together(self._members(words), offsets=offsets)

    def _client_aborts(self, client: Client, words: Sequence[str], options: Options) -> None:
        self._note(client.name, "abort", options)
        self.world.send_end_together(self._members(words), commit=False)

    def _members(self, words: Iterable[str]) -> dict[str, Producer]:
        clients = [self.clients[name] for name in words]
        return {each.transactional_id: self._producer(each, Options()) for each in clients}

    # What operators ask

    def _event_describe(self, words: Sequence[str], options: Options) -> None:
        for name in words:
            found = self.world.shard.describe(name)
            encode(DescribeTransactionsResponse(transaction_states=[found]), 0)
            if found.error_code:
                self.say(f"{name}: {code_name(found.error_code)}")
                continue
            partitions = [
                TopicPartition(each.topic, index)
                for each in found.topics
                for index in each.partitions
            ]
            started_ms = found.transaction_start_time_ms
            began = "" if started_ms < 0 else f", began at {(started_ms - EPOCH_MS) / 1000:.3f}"
            self.say(
                f"{name} is {found.transaction_state}, "
                f"producer {found.producer_id}, epoch {found.producer_epoch}, "
                f"timeout {found.transaction_timeout_ms} ms{began}, "
                + (names(partitions) or "no partitions")
            )

    def _event_list(self, words: Sequence[str], options: Options) -> None:
        producer_id = options.named.get("producer")
        request = ListTransactionsRequest(
            sorted(options.flags & STATES),
            [] if producer_id is None else [int(producer_id)],
            duration_ms(options.named.get("longer than", "-1 ms")),
            options.named.get("pattern"),
        )
        found = self.world.shard.list_transactions(request, self.world.now)
        encode(ListTransactionsResponse(transaction_states=found), 2)
        for each in found:
            state = each.transaction_state
            self.say(f"{each.transactional_id}: {state}, producer {each.producer_id}")
        if not found:
            self.say("nothing")

    # What the world around the coordinator does

    def _event_config(self, words: Sequence[str], options: Options) -> None:
        settings = dict(word.split("=") for word in words)
        config = TransactionConfig(**{name: int(value) for name, value in settings.items()})
        self.world = TranscriptWorld(config, self.say, self._on_reply)

    def _event_wait(self, words: Sequence[str], options: Options) -> None:
        self.world.advance(duration_ms(" ".join(words)))

    def _event_log(self, words: Sequence[str], options: Options) -> None:
        world = self.world
        if words == ["is", "late"]:
            world.report_late()
            return
        world.holds_log = {"holds": True, "commits": False, "fails": False}[words[0]]
        world.fails_log = ErrorCode[words[1]] if words[0] == "fails" else None
        while world.waiting and not world.holds_log:
            world.settle_one()
        world.fails_log = None

    def _event_ids(self, words: Sequence[str], options: Options) -> None:
        world = self.world
        if words[0] == "fail":
            while world.allocating:
                allocation_id, code = world.allocating.pop(0).allocation_id, ErrorCode[words[1]]
                world.carry_out(world.shard.on_no_producer_ids(allocation_id, code, world.now))
        world.holds_ids = {"hold": True, "are": False, "fail": False}[words[0]]
        while world.allocating and not world.holds_ids:
            world.allocate_one()

    def _event_marker(self, words: Sequence[str], options: Options) -> None:
        match words:
            case ["of", where, "written"]:
                self.world.answer_marker(at(where), NONE)
            case ["of", where, "fails", code]:
                self.world.answer_marker(at(where), ErrorCode[code])
            case _:
                raise ValueError(f"a marker cannot be {words}")

    def _event_markers(self, words: Sequence[str], options: Options) -> None:
        assert words in (["hold"], ["written"]), words
        self.world.holds_markers = words == ["hold"]
        while self.world.sent and not self.world.holds_markers:
            self.world.mark_one()

    def _event_delete(self, words: Sequence[str], options: Options) -> None:
        world = self.world
        world.carry_out(world.shard.on_partitions_gone([at(word) for word in words], world.now))

    def _event_skip(self, words: Sequence[str], options: Options) -> None:
        name, _, _, epoch = words
        raised = replace(self.world.transaction(name), producer_epoch=int(epoch))
        self.world.log.append(transaction_record(raised))
        self.world.fail_over()
        for client in self.clients.values():
            if client.transactional_id == name:
                client.producer = raised.granted

    def _event_coordinator(self, words: Sequence[str], options: Options) -> None:
        world = self.world
        if words == ["moves"]:
            world.carry_out(world.shard.unload())
        else:
            assert words == ["crashes"], words
        if "append survives" in options.flags:
            world.log += [record for append in world.waiting for record in append.records]
        world.holds_log = world.holds_ids = False
        world.fail_over()

    # What is seen

    def _on_reply(self, token: Token, answer: Answer) -> None:
        asked = self.asked.pop(token)
        first, *others = self._show(asked, answer)
        lost = " (lost)" if asked.is_lost else ""
        for line in (first + lost, *others):
            self.say(f"{asked.who} <- {asked.what}: {line}")

    def _learn(self, asked: Asked, name: str, producer: Producer) -> str:
        if not asked.is_lost:
            self.clients[name].producer = producer
        return f"producer {producer.producer_id}, epoch {producer.epoch}"

    def _show(self, asked: Asked, answer: Answer) -> list[str]:
        match answer:
            case InitProducerIdResponse() | EndTxnResponse():
                encode(answer, asked.version)
                if answer.error_code:
                    return [code_name(answer.error_code)]
                if isinstance(answer, EndTxnResponse) and asked.version < BUMPS_SINCE:
                    return ["NONE"]
                producer = Producer(answer.producer_id, answer.producer_epoch)
                return [self._learn(asked, asked.who, producer)]
            case AddPartitionsToTxnResponse.Transaction():
                return [self._show_added(answer)]
            case AddOffsetsToTxnResponse():
                encode(answer, asked.version)
                return [code_name(answer.error_code)]
        return [answer.code.name, *self._show_members(asked, answer)]

    def _show_added(self, answer: AddPartitionsToTxnResponse.Transaction) -> str:
        by_code: dict[str, list[TopicPartition]] = {}
        for topic in answer.topic_results:
            for result in topic.results_by_partition:
                where = TopicPartition(topic.name, result.partition_index)
                by_code.setdefault(code_name(result.partition_error_code), []).append(where)
        return ", ".join(f"{names(where)} {code}" for code, where in by_code.items())

    def _show_members(self, asked: Asked, answer: EndedTogether) -> Iterable[str]:
        owners = {each.transactional_id: each.name for each in self.clients.values()}
        for member in answer.members:
            result = member.code.name
            if member.code is NONE and member.producer_id != NO_PRODUCER_ID:
                producer = Producer(member.producer_id, member.producer_epoch)
                result = self._learn(asked, owners[member.transactional_id], producer)
            yield f"  {member.transactional_id} {result}"


def perform(script: str) -> str:
    """Returns the script with what the coordinator does now below each line."""
    head, _, body = script.partition("\n\n")
    player = Player()
    lines = [head, ""]
    for line in body.split("\n"):
        if line.startswith("    "):
            continue
        lines.append(line)
        if line and not line.startswith("#"):
            lines += player.play(line)
    return "\n".join(lines)
