"""Fetch sessions (KIP-227): a client that always asks for the same partitions says so once.

    session id, epoch      means
    0, -1                  no session, please: every request names everything
    any, 0                 a full request that begins a new session
    id, n > 0              the next incremental request: only what changed is named
    id, -1                 a full request that ends the session

An incremental answer leaves out partitions with no news: no records, no error, and the same
watermarks as in the last answer. Sessions are bounded; the one longest unused goes when a new one
needs room, and its client is told to begin again.

A client may come back with a session of the broker's life before: one that reads elsewhere while
the broker is away has nothing to tell it by. So each life counts its sessions from another number
on. Were an id used again, its old owner would move the offsets of the new one, who would then miss
records and never know.

A session names topics either by name or by id, as it was begun. With both, the same partition could
be in it twice.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from typing import Final

from penstock.wire.errors import ErrorCode, KafkaError
from penstock.wire.messages import FetchRequest, FetchResponse

NO_SESSION: Final = 0
FINAL_EPOCH: Final = -1
INITIAL_EPOCH: Final = 0
SESSION_ID_MAX: Final = 2**31 - 1
_EPOCH_MAX: Final = 2**31 - 1


class Wanted:
    """One partition that a fetch asks for."""

    __slots__ = (
        "counted_ms",
        "fetch_offset",
        "high_watermark",
        "index",
        "key",
        "last_fetched_epoch",
        "last_stable_offset",
        "leader_epoch",
        "log_start",
        "log_start_offset",
        "max_bytes",
        "term",
        "topic",
        "topic_id",
    )

    def __init__(self, topic: str, topic_id: bytes, asked: FetchRequest.Partition) -> None:
        self.key = (topic, topic_id, asked.partition)
        """As it was asked for: by name, or by id with an empty name."""
        self.topic = topic
        self.topic_id = topic_id
        self.index = asked.partition
        self.high_watermark = self.last_stable_offset = self.log_start_offset = -2
        self.update(asked)

    def update(self, asked: FetchRequest.Partition) -> None:
        self.fetch_offset = asked.fetch_offset
        self.leader_epoch = asked.current_leader_epoch
        self.last_fetched_epoch = asked.last_fetched_epoch
        self.max_bytes = asked.partition_max_bytes
        self.log_start = asked.log_start_offset
        """Where a follower's log starts; -1 for a consumer."""
        self.term: object = None
        """The leader's term in which this was last found to be in order, for a follower."""
        self.counted_ms = 0

    def has_news(self, answer: FetchResponse.Partition, size: int) -> bool:
        """Whether a session's client must be told; remembers what it will have been told."""
        seen = (self.high_watermark, self.last_stable_offset, self.log_start_offset)
        now = (answer.high_watermark, answer.last_stable_offset, answer.log_start_offset)
        self.high_watermark, self.last_stable_offset, self.log_start_offset = now
        news = bool(size) or seen != now or answer.diverging_epoch is not None
        news = news or answer.preferred_read_replica >= 0
        if answer.error_code:
            # Say it again next time, whatever the watermarks are.
            self.high_watermark = -2
        return news or bool(answer.error_code)


class Session:
    """It outlives its connection: clients reconnect and go on with it."""

    __slots__ = ("by_id", "epoch", "session_id", "wanted")

    def __init__(self, session_id: int, *, by_id: bool) -> None:
        self.session_id = session_id
        self.by_id = by_id
        self.epoch = 1
        self.wanted: OrderedDict[tuple[str, bytes, int], Wanted] = OrderedDict()


class FetchSessions:
    def __init__(self, first_id: int, sessions_max: int = 1000) -> None:
        """`first_id` is drawn at random from 1 to `SESSION_ID_MAX`, anew in each life."""
        self._sessions_max = sessions_max
        self._sessions: OrderedDict[int, Session] = OrderedDict()
        self._next_id = first_id

    def __len__(self) -> int:
        return len(self._sessions)

    def begin(self, request: FetchRequest, *, by_id: bool) -> tuple[Session | None, list[Wanted]]:
        """What a request wants, and its session if it has one. `KafkaError` if that is gone, or
        not the one that the request takes it for."""
        if request.session_epoch == FINAL_EPOCH:
            self._sessions.pop(request.session_id, None)
            return None, list(_asked(request))
        if request.session_epoch == INITIAL_EPOCH:
            self._sessions.pop(request.session_id, None)
            return self._open(request, by_id=by_id)
        session = self._sessions.get(request.session_id)
        if session is None:
            raise KafkaError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        if session.epoch != request.session_epoch:
            raise KafkaError(ErrorCode.INVALID_FETCH_SESSION_EPOCH)
        if session.by_id != by_id:
            raise KafkaError(ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR)
        session.epoch = session.epoch + 1 if session.epoch < _EPOCH_MAX else 1
        self._sessions.move_to_end(session.session_id)
        self._update(session, request)
        return session, list(session.wanted.values())

    def _open(self, request: FetchRequest, *, by_id: bool) -> tuple[Session | None, list[Wanted]]:
        wanted = list(_asked(request))
        if not wanted:
            return None, wanted
        while len(self._sessions) >= self._sessions_max:
            self._sessions.popitem(last=False)
        session = Session(self._next_id, by_id=by_id)
        self._next_id = self._next_id + 1 if self._next_id < SESSION_ID_MAX else 1
        for each in wanted:
            session.wanted[each.key] = each
        self._sessions[session.session_id] = session
        return session, wanted

    @staticmethod
    def _update(session: Session, request: FetchRequest) -> None:
        for topic in request.forgotten_topics_data:
            for index in topic.partitions:
                session.wanted.pop((topic.topic, topic.topic_id, index), None)
        for topic_asked in request.topics:
            for asked in topic_asked.partitions:
                key = (topic_asked.topic, topic_asked.topic_id, asked.partition)
                held = session.wanted.get(key)
                if held is None:
                    session.wanted[key] = Wanted(topic_asked.topic, topic_asked.topic_id, asked)
                else:
                    held.update(asked)

    def rotate(self, session: Session, served: Iterable[Wanted]) -> None:
        """Partitions that were given bytes go to the end, so that the others come first next."""
        for each in served:
            if each.key in session.wanted:  # the session may have changed while the fetch waited
                session.wanted.move_to_end(each.key)


def _asked(request: FetchRequest) -> Iterator[Wanted]:
    seen: set[tuple[str, bytes, int]] = set()
    for topic in request.topics:
        for asked in topic.partitions:
            key = (topic.topic, topic.topic_id, asked.partition)
            if key not in seen:
                seen.add(key)
                yield Wanted(topic.topic, topic.topic_id, asked)
