"""Records which seeds ran on which source code.

The record is a file of JSON lines in the checkout. Lines are only appended, so the records of
several machines merge by keeping the lines of all of them (`merge=union` in .gitattributes). Each
line is about some seeds of one run: the commit, the hash of the simulated source code, the seeds
that ran clean and those that failed.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from penstock.sim.simulated_source import PACKAGE_DIRECTORY, source_hash

CHECKOUT: Final = PACKAGE_DIRECTORY.parents[1]
DEFAULT_RECORD: Final = CHECKOUT / "tests" / "sim" / "seeds-run.jsonl"
APPEND_EVERY: Final = 50
"""Seeds per line. This many are lost at most when a run is killed."""


@dataclass(frozen=True, slots=True)
class RecordLine:
    """Seeds that ran on one version of the source code."""

    source: str
    commit: str
    virtual_s: float
    clean: tuple[int, ...] = ()
    failed: dict[int, str] = field(default_factory=dict)
    variant: str = ""
    """The options beyond what seeds draw, such as a focus."""

    def to_json(self) -> str:
        told = asdict(self) | {"clean": format_seeds(self.clean)}
        return json.dumps(told, separators=(",", ":"), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> RecordLine:
        found: dict[str, Any] = json.loads(text)
        return cls(
            found["source"],
            found["commit"],
            found["virtual_s"],
            tuple(parse_seeds(found["clean"])),
            {int(seed): failure for seed, failure in found["failed"].items()},
            found["variant"],
        )


def format_seeds(seeds: Iterable[int]) -> str:
    """Returns seeds as text, such as `0..50,52`: ranges without their ends, and single seeds."""
    ranges: list[list[int]] = []
    for seed in sorted(set(seeds)):
        if ranges and ranges[-1][1] == seed:
            ranges[-1][1] += 1
        else:
            ranges.append([seed, seed + 1])
    return ",".join(f"{first}..{end}" if end > first + 1 else f"{first}" for first, end in ranges)


def parse_seeds(text: str) -> Iterator[int]:
    for part in filter(None, text.split(",")):
        first, dots, end = part.partition("..")
        yield from range(int(first), int(end) if dots else int(first) + 1)


class Recorder:
    """Appends the results of seeds to a record, several seeds at a time."""

    def __init__(
        self, path: Path, virtual_s: float, *, source: str, commit: str, variant: str = ""
    ) -> None:
        self._path = path
        self._variant = variant
        self._virtual_s = virtual_s
        self._source = source
        self._commit = commit
        self._clean: list[int] = []
        self._failed: dict[int, str] = {}

    def add(self, seed: int, failure: str) -> None:
        if failure:
            self._failed[seed] = failure
        else:
            self._clean.append(seed)
        if len(self._clean) + len(self._failed) >= APPEND_EVERY:
            self.flush()

    def flush(self) -> None:
        """Writes what was added since the last line."""
        if not self._clean and not self._failed:
            return
        line = RecordLine(
            self._source,
            self._commit,
            self._virtual_s,
            tuple(self._clean),
            self._failed,
            self._variant,
        )
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(line.to_json() + "\n")
        self._clean, self._failed = [], {}


def open_recorder(path: Path, virtual_s: float, variant: str = "") -> Recorder:
    """Returns a recorder for the source code that this process runs."""
    commit = current_commit()
    return Recorder(path, virtual_s, source=source_hash(), commit=commit, variant=variant)


def current_commit(checkout: Path = CHECKOUT) -> str:
    """Returns the current commit, with a `+` if files have changed since, or `unknown`."""
    try:
        head = _git(checkout, "rev-parse", "--short=12", "HEAD")
        return head + ("+" if _git(checkout, "status", "--porcelain", "--", "src") else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def _git(checkout: Path, *arguments: str) -> str:
    command = ["git", "-C", str(checkout), *arguments]
    return subprocess.run(  # noqa: S603 - the arguments are ours
        command, capture_output=True, text=True, check=True
    ).stdout.strip()


@dataclass(frozen=True, slots=True)
class Standing:
    """What a record says about one version of the source code."""

    source: str
    clean: int
    """Distinct seeds that ran clean and never failed."""
    failed: dict[int, str]
    commits: tuple[str, ...]
    other_sources: int
    """How many other versions of the source code have seeds in the record."""


def read_record(path: Path) -> list[RecordLine]:
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8").splitlines()
    return [RecordLine.from_json(line) for line in lines if line]


def standing(
    lines: Sequence[RecordLine], source: str, virtual_s: float, variant: str = ""
) -> Standing:
    """Counts the seeds that ran for at least `virtual_s` on that source code."""
    mine = [
        line
        for line in lines
        if line.source == source and line.virtual_s >= virtual_s and line.variant == variant
    ]
    failed: dict[int, str] = {}
    for line in mine:
        failed |= line.failed
    clean = {seed for line in mine for seed in line.clean} - failed.keys()
    return Standing(
        source,
        len(clean),
        failed,
        tuple(dict.fromkeys(line.commit for line in mine)),
        len({line.source for line in lines} - {source}),
    )
