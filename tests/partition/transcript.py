"""Plays the scripts in `tests/scripts/replication`: a line at the margin happens, what follows from
it is indented below. Text above the first empty line says what the script shows.

The brokers are 1, 2, 3 and so on. The first registers with broker epoch 11, the second with 12; a
broker that registers again gets a new epoch. `0-2` is a batch with the offsets 0, 1 and 2. Metadata
reaches all brokers at once unless the script says that it is late. As in a broker, a leader looks
for ISR changes to propose when a follower outside the ISR has reached the high watermark, and from
time to time: here, after every `wait`. The controller decides nothing until the script says so.
replica.lag.time.max.ms is 30 s, and replica.fetch.backoff.ms is 1 s.

    replicas 1 2 3, isr 1 2, min.insync 2, durability fsync
                                   the partition, before anything else; isr may be left out: all
                                   of them. `brokers 1 2 3 4` above it, if there are more brokers
    log of 2: 0-4 of epoch 3, 5-6 of epoch 4, high watermark 5
                                   what it has when the script begins, all synced
    elect 1 in epoch 5             the metadata names a leader, whatever the rules for elections
    1 appends 3 records            as a write with acks=1 does
    producer sends 3 records to 1  with acks=all: the producer is answered when they are committed
    1 flushes
    2 fetches                      the fetch, the answer and what the follower does with it
    2 sends a fetch, 1 answers 2, 2 receives the answer
                                   the same in three steps
    2 loses the connection         the fetch in flight is not answered
    wait 30 s
    controller decides             on the leader's proposal, and may refuse it
    controller decides, the answer is lost
    the proposal is lost           the leader gives up waiting; later: the lost proposal arrives
    controller refuses CODE        whatever its rules say
    controller elects              leaders for partitions that need one
    metadata is late for 1 2, metadata arrives at 1
    2 crashes, 2 exits             it forgets its high watermark and keeps what it wrote
    2 loses power                  it keeps only what is synced
    2 starts                       registers again, with a new broker epoch
    registration of 2 expires
    1 stops cleanly                hands over its leaderships first
    1 resigns                      it gives up its role until it hears of another one
    move to 2 3 4, cancel the move
    set min.insync.replicas 1, set unclean.leader.election.enable true
    1 deletes records before 4
    the disk of 2 is full          for the next records
    the next answer is corrupt from 4 on
    latest offset of 1             as ListOffsets reports it to clients
    low watermark of 1             as DeleteRecords reports it to clients
    show logs
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

from penstock.metadata.isr import IsrAnswer
from penstock.metadata.model import NO_LEADER, Partition
from penstock.partition.leadership import AlterIsr
from penstock.wire.errors import ErrorCode, KafkaError

from . import transcript_words as words
from .transcript_cluster import TOPIC, Replicas
from .transcript_log import Broker

UNITS = {"ms": 1, "s": 1_000, "min": 60_000}


def id_list(text: str) -> tuple[int, ...]:
    return tuple(int(each) for each in text.split())


class Player(Replicas):
    def __init__(self) -> None:
        super().__init__()
        self.events: tuple[tuple[str, Callable[..., None]], ...] = (
            (r"brokers ([\d ]+)", self._brokers),
            (
                r"replicas ([\d ]+)(?:, isr ([\d ]+))?, min\.insync (\d+), durability (\w+)",
                self._partition,
            ),
            (r"log of (\d+): (.+ of epoch \d+), high watermark (\d+)", self._log),
            (r"elect (\d+) in epoch (\d+)", self._elect),
            (r"(\d+) appends (\d+) records?", self._appends),
            (r"producer sends (\d+) records? to (\d+)", self._produces),
            (r"(\d+) flushes", self._flushes),
            (r"(\d+) fetches", self._fetches),
            (r"(\d+) sends a fetch", self._sends),
            (r"(\d+) answers (\d+)", self._answers),
            (r"(\d+) receives the answer", self._receives),
            (r"(\d+) loses the connection", self._loses_connection),
            (r"wait (\d+) (\w+)", self._wait),
            (r"controller decides(, the answer is lost)?", self._decides),
            (r"the proposal is lost", self._proposal_lost),
            (r"the lost proposal arrives", self._lost_arrives),
            (r"controller refuses (\w+)", self._refuses),
            (r"controller elects", self.elect),
            (r"metadata is late for ([\d ]+)", self._late),
            (r"metadata arrives at (\d+)", self._arrives),
            (r"(\d+) (crashes|exits|loses power)", self._stops),
            (r"(\d+) starts", self._starts),
            (r"registration of (\d+) expires", self._expires),
            (r"(\d+) stops cleanly", self._stops_cleanly),
            (r"(\d+) resigns", self._resigns),
            (r"move to ([\d ]+)", self._moves),
            (r"cancel the move", self._cancels),
            (r"set ([a-z.]+) (\w+)", self._sets),
            (r"(\d+) deletes records before (\d+)", self._deletes),
            (r"the disk of (\d+) is full", self._full),
            (r"the next answer is corrupt from (\d+) on", self._corrupts),
            (r"latest offset of (\d+)", self._latest),
            (r"low watermark of (\d+)", self._low),
            (r"show logs", self._show),
        )

    def play(self, line: str) -> list[str]:
        self.output = []
        for pattern, act in self.events:
            found = re.fullmatch(pattern, line)
            if found is not None:
                act(*found.groups())
                break
        else:
            raise AssertionError(f"no such event: {line}")
        for broker in self.brokers.values():
            self.show_leader(broker)
        return self.output

    def broker(self, text: str) -> Broker:
        return self.brokers[int(text)]

    # The beginning

    def _brokers(self, brokers: str) -> None:
        for each in id_list(brokers):
            self.brokers[each] = Broker(each)
            self.register(self.brokers[each])

    def _partition(self, replicas: str, isr: str | None, minimum: str, durability: str) -> None:
        members = id_list(isr or replicas)
        if not self.brokers:
            self._brokers(replicas)
        self.cluster.create(TOPIC, 1, 1, min_insync_replicas=minimum, durability=durability)
        epochs = tuple(self.brokers[each].broker_epoch for each in members)
        first = Partition(id_list(replicas), members, (), NO_LEADER, 0, 0, -1, epochs)
        self.store(replace(self.topic, partitions=(first,)))

    def _log(self, name: str, held: str, high_watermark: str) -> None:
        broker = self.broker(name)
        for span in words.spans_of(held):
            broker.log.append(span)
        broker.log.sync()
        broker.high_watermark = int(high_watermark)

    # Leaders and followers

    def _elect(self, leader: str, epoch: str) -> None:
        self.set_leader(int(leader), int(epoch))

    def _appends(self, leader: str, count: str) -> None:
        self.append(self.broker(leader), int(count), waits=False)

    def _produces(self, count: str, leader: str) -> None:
        self.append(self.broker(leader), int(count), waits=True)

    def _flushes(self, name: str) -> None:
        self.broker(name).log.sync()
        self.note_own_end(self.broker(name))

    def _fetches(self, name: str) -> None:
        broker = self.broker(name)
        if self.send_fetch(broker):
            flight = broker.flights.pop()
            self.serve(self.brokers[flight.fetch.leader], flight, broker.id)
            self.receive(broker, flight)

    def _sends(self, name: str) -> None:
        self.send_fetch(self.broker(name))

    def _answers(self, leader: str, name: str) -> None:
        waiting = [each for each in self.broker(name).flights if each.answer is None]
        assert waiting, f"no fetch of {name} is on its way"
        self.serve(self.broker(leader), waiting[0], int(name))

    def _receives(self, name: str) -> None:
        broker = self.broker(name)
        answered = [each for each in broker.flights if each.answer is not None]
        assert answered, f"no answer to {name} is on its way"
        broker.flights.remove(answered[0])
        self.receive(broker, answered[0])

    def _loses_connection(self, name: str) -> None:
        broker = self.broker(name)
        assert broker.sent is not None, f"{name} waits for no answer"
        self.lose_fetch(broker, broker.sent)

    def _resigns(self, name: str) -> None:
        self.resign(self.broker(name))

    def _deletes(self, name: str, offset: str) -> None:
        self.broker(name).log.delete_before(int(offset))

    def _full(self, name: str) -> None:
        self.broker(name).full_disk = True

    def _corrupts(self, offset: str) -> None:
        self.corrupt_from = int(offset)

    # Metadata, the controller, time

    def _wait(self, number: str, unit: str) -> None:
        self.now_ms += int(number) * UNITS[unit]
        for broker in self.brokers.values():
            self.propose(broker)

    def _proposed(self) -> tuple[Broker, AlterIsr]:
        for broker in self.brokers.values():
            proposal, broker.proposal = broker.proposal, None
            if proposal is not None:
                return broker, proposal
        raise AssertionError("no leader has proposed anything")

    def _decides(self, is_lost: str | None) -> None:
        broker, proposal = self._proposed()
        answer = self.decide_on(broker, proposal)
        said = f"controller -> {broker.id}: {_verdict(answer)}"
        if is_lost:
            self.say(f"{said}, but the answer is lost")
            self.refuse_proposal(broker, proposal, ErrorCode.REQUEST_TIMED_OUT)
        else:
            self.say(said)
            self.take_answer(broker, proposal, answer)
        self.publish()

    def _proposal_lost(self) -> None:
        broker, proposal = self._proposed()
        broker.lost_proposal = proposal
        self.refuse_proposal(broker, proposal, ErrorCode.REQUEST_TIMED_OUT)

    def _lost_arrives(self) -> None:
        for broker in self.brokers.values():
            proposal, broker.lost_proposal = broker.lost_proposal, None
            if proposal is not None:
                self.say(f"controller: {_verdict(self.decide_on(broker, proposal))}")
        self.publish()

    def _refuses(self, code: str) -> None:
        self.refuse_proposal(*self._proposed(), ErrorCode[code])

    def _late(self, names: str) -> None:
        for each in id_list(names):
            self.brokers[each].hears = False

    def _arrives(self, name: str) -> None:
        self.broker(name).hears = True
        self.learn(self.broker(name))

    def _stops(self, name: str, how: str) -> None:
        broker = self.broker(name)
        broker.stop()
        if how == "loses power":
            broker.keeps_all = False
            broker.log.lose_unsynced()

    def _starts(self, name: str) -> None:
        broker = self.broker(name)
        self.stopping.discard(broker.id)
        self.register(broker)
        self.say(f"{name}: registers with broker epoch {broker.broker_epoch}")
        self.publish()

    def _expires(self, name: str) -> None:
        self.unregister(int(name))
        self.publish()

    def _stops_cleanly(self, name: str) -> None:
        self.stop_cleanly(int(name))

    def _moves(self, replicas: str) -> None:
        self.move(id_list(replicas))

    def _cancels(self) -> None:
        self.move(None)

    def _sets(self, name: str, value: str) -> None:
        self.store(replace(self.topic, configs={**self.topic.configs, name: value}))
        self.publish()

    # What clients and operators see

    def _latest(self, name: str) -> None:
        held = self.broker(name).leadership
        assert held is not None
        try:
            self.say(f"client <- latest offset {held.latest_offset()}")
        except KafkaError as error:
            self.say(f"client <- {error.code.name}: {error.message}")

    def _low(self, name: str) -> None:
        broker = self.broker(name)
        assert broker.leadership is not None
        low = broker.leadership.low_watermark(broker.log.start)
        self.say(f"client <- low watermark {low if low >= 0 else 'unknown'}")

    def _show(self) -> None:
        for each in self.partition.replicas:
            self.say(words.log(self.brokers[each]))


def _verdict(answer: IsrAnswer) -> str:
    return "accepted" if answer.error == ErrorCode.NONE else answer.error.name


def perform(script: str) -> str:
    """The script with what really happens below each line."""
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
