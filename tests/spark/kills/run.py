"""Five deployed pipelines on three workers, under load, while their processes are killed.

    cd tests && python -m spark.kills.run --minutes 30 --seed 1 --json

Workers, drivers, executors and brokers are killed or frozen at random (`killer`). At the end every
acknowledged record is in every result exactly once, and aggregates are those that Python computes;
no pipeline had two drivers at once; and the history of each pipeline names the reason for each
driver that ended. The greatest time in which a pipeline committed nothing is reported for each
pipeline and each kind of kill. Nothing is excluded: it contains the pause between rounds, the
restart, and the time in which brokers took no records.

The last line is a JSON object. The exit code is 1 if something was not as it must be.
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from chaos.broker_processes import NotInTime, wait_for
from penstock.testing.slowness import patient

from . import results
from .cluster import Cluster
from .killer import Killer, Strike
from .load import Load, Row
from .pipelines import COPIES, EVENTS, PARTITIONS, SCRIPTED, Pipeline, pipelines
from .watching import Watch

FIRST_S = 900.0
"""How long the first round of all pipelines may take."""
DRAIN_S = 300.0
STOP_MAX_S = 60.0
WATERMARK_MS = 3_600_000


@dataclass
class Outcome:
    seed: int
    seconds: float = 0.0
    records: int = 0
    """Acknowledged."""
    uncertain: int = 0
    """Records whose send failed."""
    kills: dict[str, int] = field(default_factory=dict)
    greatest_stop_s: dict[str, float] = field(default_factory=dict)
    greatest_stop_by_kill_s: dict[str, float] = field(default_factory=dict)
    usual_stop_s: dict[str, float] = field(default_factory=dict)
    """The median time between two commits."""
    longer_than_a_minute: int = 0
    producer_stall_s: float = 0.0
    results: dict[str, dict[str, Any]] = field(default_factory=dict)
    missing: int = 0
    duplicates: int = 0
    wrong: int = 0
    overlaps: int = 0
    drivers: dict[str, int] = field(default_factory=dict)
    """How many drivers each pipeline had."""
    history: dict[str, dict[str, int]] = field(default_factory=dict)
    unexplained: int = 0
    complaints: list[str] = field(default_factory=list)


class Run:
    def __init__(
        self,
        folder: Path,
        seed: int,
        *,
        names: Sequence[str] = (),
        workers: int = 3,
        standalone: bool = True,
        spares: bool = True,
        per_second: int = 100,
        say: Callable[[str], None] = print,
    ) -> None:
        self.outcome = Outcome(seed)
        self._random = Random(seed)
        self._say = say
        self._cluster = Cluster(folder, workers, standalone=standalone, spares=spares)
        self._names = names
        self._per_second = per_second
        self._began = time.monotonic()

    def __call__(self, minutes: float = 0.0, kinds: Sequence[str] = ()) -> Outcome:
        """Kills for some minutes, or these kinds in this order."""
        cluster = self._cluster
        watch: Watch | None = None
        load: Load | None = None
        try:
            cluster.start()
            chosen = pipelines(cluster.spark.url if cluster.spark else "")
            chosen = [each for each in chosen if not self._names or each.name in self._names]
            watch = Watch({each.name: cluster.storage(each.name) for each in chosen})
            load = Load(cluster.bootstrap, self._per_second)
            killer = Killer(cluster, watch, load, self._random, self._tell)
            self._begin(chosen, watch, load)
            self._kill(killer, watch, minutes, kinds)
            self._end(chosen, watch, load)
            self._check(chosen, watch, load, killer)
        finally:
            for each in (load, watch):
                if each is not None:
                    each.stop()
            cluster.close()
        self.outcome.seconds = round(time.monotonic() - self._began, 1)
        return self.outcome

    def _tell(self, text: str) -> None:
        self._say(f"{time.monotonic() - self._began:7.1f} s  {text}")

    def _begin(self, chosen: Sequence[Pipeline], watch: Watch, load: Load) -> None:
        load.start()
        for pipeline in chosen:
            self._cluster.deploy(pipeline)
        watch.start()
        wait_for("all pipelines have begun", lambda: watch.have_reached(1), patient(FIRST_S))
        deployments = self._cluster.deployments
        assert deployments is not None
        count = len(self._cluster.workers)
        wait_for(
            "all pipelines work", lambda: not deployments.not_working(count), patient(FIRST_S), 0.5
        )
        self._tell(f"{len(chosen)} pipelines run on {count} workers")
        if self._cluster.spares:
            self._wait_for_archives()
        # What is measured begins here: the first starts are not restarts.
        for progress in watch.progress.values():
            progress.stops.clear()

    def _wait_for_archives(self) -> None:
        wait_for(
            "workers have archives of Java classes",
            lambda: all(each.has_class_archive for each in self._cluster.workers),
            patient(FIRST_S),
            0.5,
        )
        self._tell("all workers have archives of Java classes")

    def _kill(self, killer: Killer, watch: Watch, minutes: float, kinds: Sequence[str]) -> None:
        until = time.monotonic() + minutes * 60
        for kind in kinds or killer.kinds():
            if not kinds and time.monotonic() >= until:
                break
            done = killer.strike(kind)
            stops = {
                name: round(progress.greatest(done.at, done.recovered))
                for name, progress in watch.progress.items()
            }
            self._tell(
                f"{done.kind}: {done.target}, {done.away_s:.0f} s; recovered after "
                f"{done.recovered - done.at:.0f} s; stops {stops}"
            )
        self.outcome.complaints += killer.complaints

    def _end(self, chosen: Sequence[Pipeline], watch: Watch, load: Load) -> None:
        """Ends the load, and waits until every pipeline has everything."""
        load.stop()
        close_ms = round(time.time() * 1000) + WATERMARK_MS
        names = {pipeline.name for pipeline in chosen}
        try:
            for _ in range(3 if "windows" in names else 0):
                load.close_windows(close_ms)
                self._drain(watch, load)
            self._drain(watch, load)
        except NotInTime as late:
            self.outcome.complaints.append(f"{late}: behind are {watch.behind(_count(load))}")
        # They stop after their rounds, so views are complete.
        for name in names:
            self._cluster.stop(name)
        watch.stop()

    def _drain(self, watch: Watch, load: Load) -> None:
        count = _count(load)
        wait_for(
            "all pipelines have everything", lambda: watch.have_reached(count), patient(DRAIN_S)
        )

    # -- the checks -----------------------------------------------------------------------------

    def _check(self, chosen: Sequence[Pipeline], watch: Watch, load: Load, killer: Killer) -> None:
        out = self.outcome
        out.records, out.uncertain = len(load.acknowledged), len(load.uncertain)
        out.kills = dict(Counter(each.kind for each in killer.strikes))
        out.producer_stall_s = round(load.stall_s, 1)
        for error in (load.error, watch.error):
            if error is not None:
                out.complaints.append(f"the run itself failed: {error!r}")
        self._check_stops(watch, killer.strikes)
        self._check_results(chosen, load)
        self._check_owners(watch)
        for pipeline in chosen:
            events = self._cluster.history(pipeline.name)
            out.history[pipeline.name] = dict(Counter(each["what"] for each in events))
            unexplained = not_explained(pipeline.name, killer.strikes, events)
            unexplained += too_few(pipeline.name, out.drivers[pipeline.name], events)
            out.unexplained += len(unexplained)
            out.complaints += unexplained
        out.complaints += self._cluster.brokers.complaints()[:20]

    def _check_stops(self, watch: Watch, strikes: Sequence[Strike]) -> None:
        out = self.outcome
        for name, progress in watch.progress.items():
            lengths = sorted(each.seconds for each in progress.stops) or [0.0]
            out.greatest_stop_s[name] = round(lengths[-1], 1)
            out.usual_stop_s[name] = round(lengths[len(lengths) // 2], 1)
            longer = sum(length > STOP_MAX_S for length in lengths)
            out.longer_than_a_minute += longer
            for strike in strikes:
                greatest = round(progress.greatest(strike.at, strike.recovered), 1)
                known = out.greatest_stop_by_kill_s.get(strike.kind, 0.0)
                out.greatest_stop_by_kill_s[strike.kind] = max(known, greatest)

    def _check_results(self, chosen: Sequence[Pipeline], load: Load) -> None:
        bootstrap = self._cluster.bootstrap
        source = results.topic_rows(bootstrap, EVENTS, PARTITIONS)
        uncertain = {row for row, _ in load.uncertain}
        expected = [*load.acknowledged, *uncertain.intersection(source)]
        self._compare("the topic itself", results.compare(source, expected))
        for pipeline in chosen:
            self._compare(pipeline.name, self._result(pipeline.name, expected))

    def _result(self, name: str, rows: Sequence[Row]) -> results.Comparison:
        storage, bootstrap = self._cluster.storage(name), self._cluster.bootstrap
        columns = ("k", "n", "t")
        match name:
            case "table":
                return results.compare(
                    map(Row._make, results.table_rows(storage, "copied", columns)), rows
                )
            case "topic":
                return results.compare(results.topic_rows(bootstrap, COPIES, PARTITIONS), rows)
            case "script":
                return results.compare(results.topic_rows(bootstrap, SCRIPTED, PARTITIONS), rows)
            case "windows":
                found = results.table_rows(storage, "windows", ("start", "k", "records", "total"))
                wanted = results.expected_windows(rows)
                closing = [row for row in found if row[1] == "close"]
                return results.compare([row for row in found if row not in closing], wanted)
            case _:
                counted = results.table_rows(storage, "counts", ("k", "records", "total"))
                found = [*results.table_rows(storage, "collected", columns), *counted]
                return results.compare(found, [*map(tuple, rows), *results.expected_counts(rows)])

    def _compare(self, name: str, comparison: results.Comparison) -> None:
        out = self.outcome
        out.results[name] = asdict(comparison)
        out.missing += comparison.missing
        out.duplicates += comparison.duplicates
        out.wrong += comparison.wrong
        if not comparison.is_exact:
            out.complaints.append(f"{name} is not exact: {comparison}")

    def _check_owners(self, watch: Watch) -> None:
        for name, owners in watch.owners.items():
            self.outcome.drivers[name] = len(owners.sessions)
            found = owners.all_overlaps()
            self.outcome.overlaps += len(found)
            self.outcome.complaints += [f"{name}: {each}" for each in found]


def _count(load: Load) -> int:
    return len(load.acknowledged)


def not_explained(
    name: str, strikes: Sequence[Strike], events: Sequence[Mapping[str, Any]]
) -> list[str]:
    """Returns the strikes that ended a driver of this pipeline, and of which its history says
    nothing: neither that it failed, with the reason, nor that another worker has taken it over."""
    return [
        f"the history of {name} says nothing of {strike.kind}: {strike.target}"
        for strike in strikes
        if name in strike.stopped
        and not any(
            each["what"] in ("failed", "moved")
            and each["text"]
            and strike.at_ms <= each["at_ms"] <= strike.recovered_ms
            for each in events
        )
    ]


def too_few(name: str, drivers: int, events: Sequence[Mapping[str, Any]]) -> list[str]:
    """Each driver but the last has ended: the history must say why at least as often."""
    told = sum(each["what"] in ("failed", "moved", "interrupted") for each in events)
    if told >= drivers - 1:
        return []
    return [f"{name} had {drivers} drivers, and its history says {told} times why one ended"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rate", type=int, default=100, help="records per second")
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--kinds", default="", help="only these kills in this order, with commas")
    parser.add_argument("--pipelines", default="", help="only these pipelines, with commas")
    parser.add_argument("--json", action="store_true", help="one JSON object as the last line")
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="penstock-pipeline-kills-"))
    sys.stderr.write(f"files: {folder}\n")

    def say(text: str) -> None:
        sys.stderr.write(text + "\n")
        sys.stderr.flush()

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # Ends all processes first.
    run = Run(
        folder,
        given.seed,
        names=[each for each in given.pipelines.split(",") if each],
        workers=given.workers,
        per_second=given.rate,
        say=say,
    )
    kinds = [each for each in given.kinds.split(",") if each]
    outcome = run(given.minutes, kinds)
    text = json.dumps(asdict(outcome), indent=None if given.json else 2)
    sys.stdout.write(text + "\n")
    if outcome.complaints:
        return 1
    shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
