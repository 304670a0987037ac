"""One transaction of a workload, from beginning to end, as the history records it.

A client that is killed in between reports nothing more. If it had not requested a commit yet, its
transaction can only be aborted, and the history says so. After that its outcome is unknown.
"""

from __future__ import annotations

from collections.abc import Mapping

from penstock.sim.actors.sends import Note
from penstock.sim.actors.shared_state import Actor
from penstock.sim.history import ACKS_ALL, FAIL, INFO, Entry, Reads, Txn


class Work:
    """One transaction, until its result is in the history."""

    def __init__(self, actor: Actor, transactional_id: str, batch: int = -1) -> None:
        actor.begun += 1
        self.actor = actor
        self.name = f"{actor.name}:{actor.begun}"
        self._transactional_id = transactional_id
        self._batch = batch
        self._begun_ms = actor.shared.now_ms()
        self._ending_ms = -1.0
        self._reads: dict[str, tuple[tuple[int, str], ...]] = {}
        self._unsettled: dict[str, Note] = {}
        self.partition_names: list[str] = []
        """The topic partitions it writes to."""
        actor.shared.under_way[actor.name] = self._last_words

    @property
    def is_ending(self) -> bool:
        """Whether a commit was requested."""
        return self._ending_ms >= 0

    def note(self, partition_name: str, more: str = "") -> Note:
        """Returns the note for the next record to be sent."""
        number, value = self.actor.next_value()
        shared = self.actor.shared
        note = Note(
            self.actor,
            partition_name,
            value + more,
            number,
            ACKS_ALL,
            True,
            shared.now_ms(),
            self.name,
            self._on_settled,
        )
        self._unsettled[note.value] = note
        self.partition_names.append(partition_name)
        return note

    def _on_settled(self, note: Note) -> None:
        self._unsettled.pop(note.value, None)

    def has_read(self, reads: Reads) -> None:
        for partition_name, records in reads.items():
            self._reads[partition_name] = (*self._reads.get(partition_name, ()), *records)

    def asks_for_commit(self) -> None:
        self._ending_ms = self.actor.shared.now_ms()

    def end(self, status: str, error: str = "") -> None:
        shared = self.actor.shared
        del shared.under_way[self.actor.name]
        shared.count(f"txns_{status}")
        for note in [*self._unsettled.values()]:
            note.add(INFO, error="the outcome is unknown")
        shared.history.add(self._entry(status, error))

    def end_in_doubt(self, error: str) -> None:
        """Ends it after an error: as aborted if no commit was requested, otherwise as unknown."""
        self.end(INFO if self.is_ending else FAIL, error)

    def _entry(self, status: str, error: str) -> Txn:
        reads: Mapping[str, tuple[tuple[int, str], ...]] = dict(self._reads)
        return Txn(
            process=self.actor.name,
            status=status,
            begun_ms=self._begun_ms,
            ended_ms=self.actor.shared.now_ms(),
            error=error,
            name=self.name,
            transactional_id=self._transactional_id,
            ending_ms=self._ending_ms,
            reads=reads,
            batch=self._batch,
        )

    def _last_words(self) -> list[Entry]:
        killed = "it was killed"
        sends: list[Entry] = [note.entry(INFO, error=killed) for note in self._unsettled.values()]
        return [*sends, self._entry(INFO if self.is_ending else FAIL, killed)]
