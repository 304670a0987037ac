"""Checks the committed offsets of groups (E12).

Of all commits that were acknowledged before an OffsetFetch began, the last one of the newest
generation must be returned. Also allowed is a commit that came later or at the same time, one with
status `info`, which may take effect at any time, and one of which an attempt may have arrived late.
Anything older is a violation: a commit was lost, or was overwritten by a process that was no longer
a member.

A commit of an old generation must be refused once a newer generation is known to exist: that is,
once a member had received it before the commit began.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from penstock.sim.checkers.logs import Violation
from penstock.sim.history import FAIL, OK, Commit, Committed, Entry, Joined


@dataclass(slots=True)
class _Group:
    commits: list[Commit] = field(default_factory=list)
    questions: list[Committed] = field(default_factory=list)
    generations: list[tuple[float, int]] = field(default_factory=list)
    """When a member received a generation, and its number."""


def check_groups(entries: Iterable[Entry]) -> Iterator[Violation]:
    groups: dict[str, _Group] = {}
    for entry in entries:
        match entry:
            case Commit():
                groups.setdefault(entry.group, _Group()).commits.append(entry)
            case Committed() if entry.status == OK:
                groups.setdefault(entry.group, _Group()).questions.append(entry)
            case Joined() if entry.status == OK:
                told = groups.setdefault(entry.group, _Group()).generations
                told.append((entry.ended_ms, entry.generation))
    for name, group in groups.items():
        yield from _check_stale(name, group)
        yield from _check_answers(name, group)


def _check_stale(name: str, group: _Group) -> Iterator[Violation]:
    for commit in group.commits:
        if commit.status != OK:
            continue
        newest = max(
            (number for told, number in group.generations if told < commit.begun_ms), default=-1
        )
        if 0 <= commit.generation < newest:
            text = (
                f"{commit.process} committed in generation {commit.generation} of group {name} "
                f"after generation {newest} had begun"
            )
            yield Violation("E12", next(iter(commit.offsets), ""), text)


def _check_answers(name: str, group: _Group) -> Iterator[Violation]:
    for question in group.questions:
        for partition_name, answered in question.offsets.items():
            commits = [commit for commit in group.commits if partition_name in commit.offsets]
            last = max(
                (
                    commit
                    for commit in commits
                    if commit.status == OK and commit.ended_ms < question.begun_ms
                ),
                key=lambda commit: (commit.generation, commit.begun_ms),
                default=None,
            )
            if last is None or answered == last.offsets[partition_name]:
                continue
            since = [
                commit.offsets[partition_name]
                for commit in commits
                if _may_have_come_after(commit, last) and commit.begun_ms < question.ended_ms
            ]
            if answered not in since:
                text = (
                    f"{last.process} committed {last.offsets[partition_name]} for group {name} in "
                    f"generation {last.generation}, but {question.process} got {answered}"
                )
                yield Violation("E12", partition_name, text, last.offsets[partition_name])


def _may_have_come_after(commit: Commit, last: Commit) -> bool:
    if commit.status == FAIL or commit.generation < last.generation:
        return False
    return commit.status != OK or commit.late or commit.ended_ms > last.begun_ms
