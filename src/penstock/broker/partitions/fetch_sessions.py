"""Fetch sessions (KIP-227): a client that fetches the same partitions again names them only once.

    session id, epoch      means
    0, -1                  no session: every request names all partitions
    any, 0                 a full request that opens a new session
    id, n > 0              the next incremental request: names only what changed
    id, -1                 a full request that ends the session

An incremental response leaves out partitions without news: no records, no error, and the same
offsets (high watermark, last stable offset, log start) as in the last response.

The number of sessions is limited (`max.incremental.fetch.session.cache.slots`), and so is the total
number of partitions in clients' sessions. Followers' sessions are privileged: a follower's new
session replaces a client's, but never the reverse. A client's new session replaces the least
recently used client session, but only one that has been unused for `IDLE_S`. Without this limit,
when there are more clients than sessions, every client would lose its session to the next. If no
session can be replaced, a client gets none, and names all partitions in every request.

A client may return with a session id from the previous run of the broker. If it fetched from other
brokers while this one was down, it cannot notice the restart. So each run numbers its sessions from
a random start. If an id were used again, its old owner would move the offsets of the new owner's
session, and the new owner would miss records without noticing.

A session identifies topics either by name or by id, as in its first request. With both, the same
partition could be in the session twice.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from typing import Final

from penstock.broker.cooperative_yield import Steps, at_once
from penstock.wire.errors import ErrorCode, KafkaError
from penstock.wire.messages import FetchRequest, FetchResponse

NO_SESSION: Final = 0
FINAL_EPOCH: Final = -1
INITIAL_EPOCH: Final = 0
SESSION_ID_MAX: Final = 2**31 - 1
IDLE_S: Final = 120.0
"""How long a session must be unused before another client's session may replace it."""
CLIENT_PARTITIONS_MAX: Final = 200_000
"""How many partitions the fetch sessions of all clients may have in total: about 60 MB."""
_EPOCH_MAX: Final = 2**31 - 1
_STEP: Final = 64
"""How many partitions are handled in one step."""


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
        """As in the request: with the topic's name, or with its id and an empty name."""
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
        """Where the follower's log starts; -1 for a consumer."""
        self.term: object = None
        """For a follower: the leadership that last accepted this fetch offset."""
        self.counted_ms = 0
        """When that leadership last counted the follower's fetch."""

    def has_news(self, answer: FetchResponse.Partition, size: int) -> bool:
        """Returns whether the response must include this partition, and remembers its offsets."""
        seen = (self.high_watermark, self.last_stable_offset, self.log_start_offset)
        now = (answer.high_watermark, answer.last_stable_offset, answer.log_start_offset)
        self.high_watermark, self.last_stable_offset, self.log_start_offset = now
        news = bool(size) or seen != now or answer.diverging_epoch is not None
        news = news or answer.preferred_read_replica >= 0
        if answer.error_code:
            # So that the next response includes the partition again, even with equal offsets.
            self.high_watermark = -2
        return news or bool(answer.error_code)


Partitions = dict[tuple[str, bytes, int], Wanted]


class Session:
    """One fetch session. It outlives its connection: a client may reconnect and continue it."""

    __slots__ = ("by_id", "epoch", "privileged", "session_id", "used_at", "wanted")

    def __init__(self, session_id: int, now: float, *, by_id: bool, privileged: bool) -> None:
        self.session_id = session_id
        self.by_id = by_id
        self.privileged = privileged
        self.used_at = now
        self.epoch = 1
        self.wanted: Partitions = {}
        """In the order in which they are read."""


class FetchSessions:
    def __init__(
        self,
        first_id: int,
        sessions_max: int = 1000,
        client_partitions_max: int = CLIENT_PARTITIONS_MAX,
    ) -> None:
        """`first_id` is a random number from 1 to `SESSION_ID_MAX`, chosen at each start."""
        self._sessions_max = sessions_max
        self._client_partitions_max = client_partitions_max
        self._clients: OrderedDict[int, Session] = OrderedDict()
        """Least recently used first, as in `_followers`."""
        self._followers: OrderedDict[int, Session] = OrderedDict()
        self._client_partitions = 0
        self._next_id = first_id
        self._ended: list[Wanted] = []
        """Partitions of ended sessions, to be freed a few at a time."""

    def __len__(self) -> int:
        return len(self._clients) + len(self._followers)

    def partitions_of(self, request: FetchRequest) -> int:
        """Returns about how many partitions the request names and its session has."""
        named = len(request.topics)
        if named != 1:
            named = sum([len(topic.partitions) for topic in request.topics])
        elif named:
            named = len(request.topics[0].partitions)
        if request.session_epoch > 0:
            session = self._clients.get(request.session_id)
            if session is None:
                session = self._followers.get(request.session_id)
            if session is not None:
                forgotten = request.forgotten_topics_data
                named += len(session.wanted) + sum([len(each.partitions) for each in forgotten])
        return named

    def begin(
        self, request: FetchRequest, now: float, *, by_id: bool, privileged: bool = False
    ) -> tuple[Session | None, list[Wanted]]:
        """Returns the session of a request, if it has one, and the partitions it wants.

        Raises `KafkaError` if the session does not exist, or does not match the request.
        `privileged` is set for the brokers of the cluster."""
        return at_once(self.beginning(request, now, by_id=by_id, privileged=privileged))

    def beginning(
        self, request: FetchRequest, now: float, *, by_id: bool, privileged: bool
    ) -> Steps[tuple[Session | None, list[Wanted]]]:
        """Does the work of `begin` in steps.

        A request with many partitions takes many steps, and other requests may open or end sessions
        between them. So a new session is opened in the last step. The epoch of an existing session
        is raised in the first step, so that the same request cannot be accepted twice."""
        self._free_some()
        if request.session_epoch in (FINAL_EPOCH, INITIAL_EPOCH):
            self._end(request.session_id, privileged=privileged)
            asked: Partitions = {}
            for number, each in enumerate(_asked(request), 1):
                asked.setdefault(each.key, each)
                if number % _STEP == 0:
                    self._free_some()
                    yield
            wanted = list(asked.values())
            if request.session_epoch == FINAL_EPOCH:
                return None, wanted
            return self._open(asked, now, by_id=by_id, privileged=privileged), wanted
        session = self._clients.get(request.session_id)
        if session is None and privileged:
            session = self._followers.get(request.session_id)
        if session is None:
            raise KafkaError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        if session.epoch != request.session_epoch:
            raise KafkaError(ErrorCode.INVALID_FETCH_SESSION_EPOCH)
        if session.by_id != by_id:
            raise KafkaError(ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR)
        session.epoch = session.epoch + 1 if session.epoch < _EPOCH_MAX else 1
        session.used_at = now
        held = self._followers if session.privileged else self._clients
        held.move_to_end(session.session_id)
        yield from self._update(session, request)
        if self._client_partitions > self._client_partitions_max and not session.privileged:
            # This request is still answered in full. The client must open a session for the next.
            self._end(session.session_id)
        return session, list(session.wanted.values())

    def end(self, session: Session) -> None:
        """Ends a session of a client, unless it was replaced meanwhile."""
        if self._clients.get(session.session_id) is session:
            self._end(session.session_id)

    def _end(self, session_id: int, *, privileged: bool = False) -> None:
        session = self._clients.pop(session_id, None)
        if session is not None:
            self._client_partitions -= len(session.wanted)
        elif privileged:
            session = self._followers.pop(session_id, None)
        if session is not None and len(session.wanted) > _STEP:
            self._ended += session.wanted.values()

    def _free_some(self) -> None:
        """Frees twice as many partitions as one step handles, so that they do not accumulate."""
        if self._ended:
            del self._ended[-2 * _STEP :]

    def _open(
        self, wanted: Partitions, now: float, *, by_id: bool, privileged: bool
    ) -> Session | None:
        if not wanted or not self._make_room(now, len(wanted), privileged=privileged):
            return None
        session = Session(self._next_id, now, by_id=by_id, privileged=privileged)
        self._next_id = self._next_id + 1 if self._next_id < SESSION_ID_MAX else 1
        session.wanted = wanted
        if privileged:
            self._followers[session.session_id] = session
        else:
            self._clients[session.session_id] = session
            self._client_partitions += len(wanted)
        return session

    def _make_room(self, now: float, partitions: int, *, privileged: bool) -> bool:
        """Returns whether a session with so many partitions may be opened, and ends old sessions
        that it replaces."""
        if privileged:
            if len(self) < self._sessions_max:
                return True
            held = self._clients or self._followers
            oldest = next(iter(held.values()), None)
            if oldest is None or (oldest.privileged and now - oldest.used_at < IDLE_S):
                return False
            self._end(oldest.session_id, privileged=True)
            return True
        if partitions > self._client_partitions_max:
            return False
        while (
            len(self) >= self._sessions_max
            or self._client_partitions + partitions > self._client_partitions_max
        ):
            oldest = next(iter(self._clients.values()), None)
            if oldest is None or now - oldest.used_at < IDLE_S:
                return False
            self._end(oldest.session_id)
        return True

    def _update(self, session: Session, request: FetchRequest) -> Steps[None]:
        """Applies the changes of a request to its session.

        The session may be ended between two steps. Then its partitions no longer count towards the
        limit, but the request is answered nevertheless."""
        before, wanted = len(session.wanted), session.wanted
        for number, _ in enumerate(_changes(wanted, request), 1):
            if number % _STEP == 0:
                self._count(session, len(wanted) - before)
                self._free_some()
                yield
                before = len(wanted)
        self._count(session, len(wanted) - before)

    def _count(self, session: Session, added: int) -> None:
        if added and self._clients.get(session.session_id) is session:
            self._client_partitions += added

    def rotate(self, session: Session, served: Iterable[Wanted]) -> None:
        """Moves partitions that returned records to the end, so that the next fetch reads the
        others first."""
        for each in served:
            held = session.wanted.pop(each.key, None)
            if held is not None:  # the session may have changed while the fetch waited
                session.wanted[each.key] = held


def _asked(request: FetchRequest) -> Iterator[Wanted]:
    for topic in request.topics:
        for asked in topic.partitions:
            yield Wanted(topic.topic, topic.topic_id, asked)


def _changes(wanted: Partitions, request: FetchRequest) -> Iterator[None]:
    """Applies the changes of a request, one per step."""
    for topic in request.forgotten_topics_data:
        for index in topic.partitions:
            wanted.pop((topic.topic, topic.topic_id, index), None)
            yield
    for topic_asked in request.topics:
        for asked in topic_asked.partitions:
            key = (topic_asked.topic, topic_asked.topic_id, asked.partition)
            held = wanted.get(key)
            if held is None:
                wanted[key] = Wanted(topic_asked.topic, topic_asked.topic_id, asked)
            else:
                held.update(asked)
            yield
