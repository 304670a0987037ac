"""Rows of a table or topic, and their comparison with what a test expects. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import date, datetime
from typing import Any, Final, overload

from penstock.testing.pipelines.failures import PipelineTestFailed
from penstock.testing.pipelines.records import as_utc

Row = Mapping[str, Any]
_SHOWN_MAX: Final = 20


class Rows(Sequence[Row]):
    """Rows as dicts. Times have the zone UTC.

    Example:
        from penstock.testing.pipelines import Rows

        counts = Rows("counts", [{"page": "/", "views": 2}])
        counts.expect([{"page": "/", "views": 2}])
        print(len(counts), counts.select("views")[0])
        #> 1 {'views': 2}
    """

    def __init__(self, name: str, rows: Iterable[Row]) -> None:
        self.name = name
        self._rows = [dict(row) for row in rows]

    @overload
    def __getitem__(self, index: int) -> Row: ...
    @overload
    def __getitem__(self, index: slice) -> list[Row]: ...
    def __getitem__(self, index: int | slice) -> Row | list[Row]:
        return list[Row](self._rows[index]) if isinstance(index, slice) else self._rows[index]

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[Row]:
        return iter(self._rows)

    def __repr__(self) -> str:
        return f"{self.name}: {_shown(self._rows)}"

    def select(self, *columns: str) -> Rows:
        """Returns the rows with these columns only."""
        for row in self._rows[:1]:
            if missing := [name for name in columns if name not in row]:
                raise PipelineTestFailed(
                    f"{self.name} has no column {', '.join(missing)}: it has {', '.join(row)}"
                )
        return Rows(self.name, ({name: row[name] for name in columns} for row in self._rows))

    def expect(self, expected: Iterable[Row], *, ordered: bool = False) -> None:
        """Fails, with the missing and the extra rows, if these are not exactly the rows.

        The order counts only with `ordered`. A time may be written as text. `pytest.approx` works
        in the place of a number."""
        __tracebackhide__ = True
        wanted = [dict(row) for row in expected]
        extra = list(self._rows)
        missing = []
        for row in wanted:
            found = next((one for one in extra if _equal(one, row)), None)
            if found is None:
                missing.append(row)
            else:
                extra.remove(found)
        if missing or extra:
            raise AssertionError(self._difference(len(wanted), missing, extra))
        if ordered and not all(map(_equal, self._rows, wanted)):
            raise AssertionError(
                f"{self.name} has the expected rows in another order:{_shown(self._rows)}"
            )

    def _difference(self, wanted: int, missing: Sequence[Row], extra: Sequence[Row]) -> str:
        text = f"{self.name} has {len(self._rows)} rows, and {wanted} were expected"
        if missing:
            text += f"\n{len(missing)} missing:{_shown(missing)}"
        if extra:
            text += f"\n{len(extra)} extra:{_shown(extra)}"
        if missing and extra and (names := _columns(missing) ^ _columns(extra)):
            text += f"\ncolumns that only one side has: {', '.join(sorted(names))}"
        return text


def _columns(rows: Sequence[Row]) -> set[str]:
    return {name for row in rows for name in row}


def _equal(found: Any, wanted: Any) -> bool:
    if isinstance(wanted, Mapping):
        return (
            isinstance(found, Mapping)
            and set(found) == set(wanted)
            and all(_equal(found[name], value) for name, value in wanted.items())
        )
    if isinstance(wanted, list | tuple):
        return (
            isinstance(found, list | tuple)
            and len(found) == len(wanted)
            and all(map(_equal, found, wanted))
        )
    if isinstance(found, datetime) and isinstance(wanted, datetime | str):
        return as_utc(found) == as_utc(wanted)
    if isinstance(found, date) and isinstance(wanted, str):
        return found.isoformat() == wanted
    return bool(found == wanted)


def _shown(rows: Sequence[Row]) -> str:
    lines = [_line(row) for row in rows[:_SHOWN_MAX]]
    if len(rows) > _SHOWN_MAX:
        lines.append(f"... and {len(rows) - _SHOWN_MAX} more")
    return "".join(f"\n  {line}" for line in lines) or " none"


def _line(row: Row) -> str:
    return ", ".join(f"{name}={_text(value)}" for name, value in row.items())


def _text(value: Any) -> str:
    if isinstance(value, datetime):
        return as_utc(value).isoformat(" ").removesuffix("+00:00")
    return repr(value)
