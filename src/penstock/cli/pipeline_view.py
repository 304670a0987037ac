"""Shows a pipeline run.

On a terminal: a table that is redrawn a few times a second. Elsewhere: a line for every change, or
with `--json` an object for every event.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any, Protocol

from penstock.cli.output import count, emit, emit_json, printable
from penstock.cli.tables import Column, table
from penstock.runtime import SystemClock

if TYPE_CHECKING:
    from rich.console import RenderableType

    from penstock.spark.pipelines.events import RunView

COLUMNS = (
    Column("flow"),
    Column("state"),
    Column("rows", right=True),
    Column("rows/s", right=True),
    Column("lag", right=True),
    Column("violations"),
    Column("last batch"),
)


SKEW_SHOWN = 2.0
"""A lower skew needs no attention."""


class View(Protocol):
    def show(self, event: Mapping[str, Any]) -> None: ...


def flow_rows(flows: Iterable[Mapping[str, Any]]) -> list[tuple[object, ...]]:
    """Returns the cells of `COLUMNS` for each flow of `RunView.as_dict`."""
    return [
        (
            flow["name"],
            str(flow["status"]).lower(),
            flow["rows"] if flow["streaming"] else None,
            round(flow["rows_per_s"]) if flow["batch"] is not None else None,
            flow["lag"],
            violations_text(flow),
            batch_text(flow),
        )
        for flow in flows
    ]


def violations_text(flow: Mapping[str, Any]) -> str:
    # A run of an older version has none.
    found = flow.get("violations") or {}
    return ", ".join(f"{name} {number:,}" for name, number in found.items()) or "-"


def batch_text(flow: Mapping[str, Any]) -> str:
    if flow["batch"] is None:
        return "-"
    return (
        f"#{flow['batch']}: {count(flow['batch_rows'], 'row')} in "
        f"{flow['batch_ms'] / 1000:.1f} s at {clock_text(flow['batch_at'])}{skew_text(flow)}"
    )


def skew_text(flow: Mapping[str, Any]) -> str:
    """Returns how uneven the partitions of its topics and Spark's tasks are, if they are."""
    shown = ""
    for name in ("skew", "task_skew"):
        found = flow.get(name)  # A run of an older version has none.
        if found is not None and found >= SKEW_SHOWN:
            shown += f", {name.replace('_', ' ')} {found:,.1f}"
    return shown


def clock_text(moment: str) -> str:
    """Returns the time of day of an ISO time. Any other text is returned unchanged."""
    try:
        return f"{datetime.fromisoformat(moment):%H:%M:%S}"
    except ValueError:
        return moment or "?"


@contextmanager
def shown(view: RunView, *, json: bool) -> Iterator[View]:
    if json:
        yield _JsonView()
    elif sys.stdout.isatty():
        with _LiveView(view) as live:
            yield live
    else:
        yield _LineView(view)


class _JsonView:
    def show(self, event: Mapping[str, Any]) -> None:
        emit_json(event)
        sys.stdout.flush()


class _LineView:
    def __init__(self, view: RunView) -> None:
        self._view = view
        self._phase = ""

    def show(self, event: Mapping[str, Any]) -> None:
        if text := self._text(event):
            emit(printable(text))
            sys.stdout.flush()

    def _text(self, event: Mapping[str, Any]) -> str:
        match event["event"]:
            case "phase":
                return str(event["text"])
            case "round":
                return f"round {event['number']}"
            case "flow":
                error = f": {event['error']}" if event.get("error") else ""
                return f"{event['flow']} {str(event['status']).lower()}{error}"
            case "progress":
                flow = self._view.flow(str(event["flow"]))
                rate = f"{event['rows_per_s']:,.0f} rows/s"
                lag = "" if flow.lag is None else f", lag {flow.lag:,}"
                return (
                    f"{flow.name} batch #{event['batch']}: {count(event['rows'], 'row')}, "
                    f"{rate}{lag}"
                )
        return ""


class _LiveView:
    """A table that Rich redraws on its own thread, so that the elapsed time advances."""

    def __init__(self, view: RunView) -> None:
        from rich.console import Console  # noqa: PLC0415 -- slow to load, and for people only
        from rich.live import Live  # noqa: PLC0415 -- only when used

        self._view = view
        self._clock = SystemClock()
        self._started = self._clock.monotonic()
        self._live = Live(
            get_renderable=self._drawn, console=Console(highlight=False), refresh_per_second=4
        )

    def __enter__(self) -> _LiveView:
        self._live.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.refresh()
        self._live.__exit__(None, None, None)

    def show(self, event: Mapping[str, Any]) -> None:
        """Does nothing: the redraw reads the view."""

    def _drawn(self) -> RenderableType:
        from rich.text import Text  # noqa: PLC0415 -- as above

        view = self._view
        seconds = self._clock.monotonic() - self._started
        round_text = f", round {view.round}" if view.round > 1 else ""
        head = f"{printable(view.name)}: {view.phase}{round_text}, {seconds:.0f} s"
        lines = [head]
        flows = view.as_dict()["flows"]
        if flows:
            lines.append(table(COLUMNS, flow_rows(flows)))
        lines += [printable(f"{flow['name']}: {flow['error']}") for flow in flows if flow["error"]]
        return Text.from_ansi("\n".join(lines))
