"""`penstock log verify`: prints the result of a verification as a table or as one JSON object."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict
from os.path import basename, dirname
from typing import Final

from rich.box import SIMPLE
from rich.console import Console, RenderableType
from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar
from rich.table import Table
from rich.text import Text

from penstock.broker.repair.durability_proof import LosslessRecord
from penstock.cli.output import count, emit, emit_json, printable, size_text, time_text
from penstock.cli.tables import draw
from penstock.ports import Disk
from penstock.runtime import system_boot_id
from penstock.storage.findings import Finding, LogReport, Severity
from penstock.storage.verify import Progress, Verification, verify_directory

LARGE_BYTES: Final = 64 << 20
"""Below this size verification ends before anyone could read a progress bar."""

_STYLES: Final = {Severity.ERROR: "bold red", Severity.WARNING: "yellow", Severity.INFO: "dim"}


def show(disk: Disk, path: str, *, deep: bool, as_json: bool) -> bool:
    """Verifies the logs, prints the result, and returns whether everything is sound."""
    path = path.rstrip("/") or "/"
    disk.listdir(path)  # raises for a bad path before the progress bar is drawn
    bar = None if as_json or not sys.stderr.isatty() else _bar()
    with bar or nullcontext():
        result = verify_directory(
            disk,
            path,
            deep=deep,
            progress=None if bar is None else _Reporter(bar),
            cache_is_intact=_intact_caches(disk),
        )
    if as_json:
        emit_json(_json(result))
    else:
        emit(draw(_text(result)))
    return result.sound


def _intact_caches(disk: Disk) -> Callable[[str], bool]:
    """Returns a function that says for a log whether a broker wrote it since this machine was
    booted, and lost nothing. The broker's data directory is above the directory of its logs."""
    known: dict[str, Callable[[str], bool]] = {}

    def is_intact(directory: str) -> bool:
        root = dirname(directory) or "."
        if root not in known:
            record = LosslessRecord(disk, f"{root}/..", -1, system_boot_id)
            known[root] = record.intact_caches()
        return known[root](basename(directory))

    return is_intact


def _bar() -> Bar:
    return Bar(
        TextColumn("verifying"),
        BarColumn(bar_width=None),
        DownloadColumn(binary_units=True),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    )


class _Reporter:
    """Shows the progress bar if there is much to verify."""

    def __init__(self, bar: Bar) -> None:
        self._bar = bar
        self._task = bar.add_task("verify", total=None, visible=False)

    def __call__(self, progress: Progress) -> None:
        self._bar.update(
            self._task,
            completed=progress.done_bytes,
            total=progress.total_bytes,
            visible=progress.total_bytes >= LARGE_BYTES,
        )


def _text(result: Verification) -> list[RenderableType]:
    single = len(result.logs) == 1
    parts: list[RenderableType] = [
        _one_log(result.logs[0]) if single else _many_logs(result.path, result.logs)
    ]
    # For many logs only warnings and errors are listed: every log in use has informational notes.
    listed = [finding for finding in result.findings if single or finding.severity != Severity.INFO]
    if listed:
        parts.append(_findings(result.path, listed))
    parts.append(_verdict(result, hidden=len(result.findings) - len(listed)))
    return parts


def _name(log: LogReport) -> str:
    if log.topic is None:
        return printable(log.directory.rpartition("/")[2])
    return printable(f"{log.topic}-{log.partition}")


def _span(log: LogReport) -> str:
    return "none" if log.end_offset is None else f"{log.log_start_offset}..{log.end_offset}"


def _one_log(log: LogReport) -> Table:
    table = Table.grid(padding=(0, 2))
    rows = {
        "log": _name(log),
        "topic id": printable(log.topic_id or "unknown"),
        "offsets": f"from {log.log_start_offset}, next is {log.end_offset}",
        "on disk up to": str("unknown" if log.recovery_point is None else log.recovery_point),
        "segments": f"{log.segments:,}, {size_text(log.size_bytes)} in total",
        "batches": f"{log.batches:,}" + _codecs(log),
        "records": f"{log.records:,}",
        "times": _times(log),
        "last stop": "clean" if log.clean_stop else "not clean, or in use",
    }
    for name, value in rows.items():
        table.add_row(Text(name, style="bold"), Text(value))
    return table


def _codecs(log: LogReport) -> str:
    used = sorted(log.codecs.items())
    return " (" + ", ".join(f"{name} {batches:,}" for name, batches in used) + ")" if used else ""


def _times(log: LogReport) -> str:
    if log.first_timestamp is None or log.last_timestamp is None:
        return "none"
    return f"{time_text(log.first_timestamp)} to {time_text(log.last_timestamp)}"


def _many_logs(path: str, logs: tuple[LogReport, ...]) -> Table:
    table = Table(box=SIMPLE, pad_edge=False)
    table.add_column("log", overflow="fold")
    table.add_column("offsets", overflow="fold")
    for name in ("segments", "records", "size"):
        table.add_column(name, justify="right")
    table.add_column("state")
    for log in logs:
        table.add_row(
            Text(_relative(path, log.directory)),
            _span(log),
            f"{log.segments:,}",
            f"{log.records:,}",
            size_text(log.size_bytes),
            _state(log),
        )
    return table


def _state(log: LogReport) -> Text:
    counts = Counter(finding.severity for finding in log.findings)
    for severity in (Severity.ERROR, Severity.WARNING):
        if counts[severity]:
            return Text(count(counts[severity], severity), style=_STYLES[severity])
    return Text("sound", style="green")


def _relative(path: str, full: str) -> str:
    inside = full.removeprefix(path).lstrip("/")
    return printable(inside or full.rpartition("/")[2])


def _findings(path: str, findings: list[Finding]) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    table.add_row("", "")
    for finding in sorted(findings, key=lambda found: list(_STYLES).index(found.severity)):
        where = _relative(path, finding.path)
        if finding.position is not None:
            where += f" at byte {finding.position}"
        message = Text(where, style="bold")
        message.append("\n" + printable(finding.message), style="not bold")
        table.add_row(Text(finding.severity, style=_STYLES[finding.severity]), message)
    return table


def _verdict(result: Verification, hidden: int) -> Text:
    counts = Counter(finding.severity for finding in result.findings)
    records = sum(log.records for log in result.logs)
    size = size_text(sum(log.size_bytes for log in result.logs))
    what = f"{count(len(result.logs), 'log')}, {count(records, 'record')}, {size}"
    problems = [
        count(counts[severity], severity)
        for severity in (Severity.ERROR, Severity.WARNING)
        if counts[severity]
    ]
    verdict = "sound" if result.sound else "NOT SOUND"
    line = f"\n{verdict}: {what}" + "".join(f", {problem}" for problem in problems)
    if hidden:
        line += f"\n{count(hidden, 'note')} not shown: verify one log, or use --json, to see them"
    return Text(line, style="green" if result.sound else "bold red")


def _json(result: Verification) -> dict[str, object]:
    return {
        "path": result.path,
        "deep": result.deep,
        "sound": result.sound,
        "logs": [{"sound": log.sound, **asdict(log)} for log in result.logs],
    }
