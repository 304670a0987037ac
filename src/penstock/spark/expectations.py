"""Expectations: conditions that the rows of a flow must meet, and what happens to other rows.

    from penstock.spark import expect

    @dp.table
    @expect("valid_id", "id IS NOT NULL", on_violation="drop")
    @expect("known_page", "page LIKE '/%'", on_violation="quarantine")
    def page_views() -> DataFrame: ...

A row violates an expectation if its condition is false or NULL. What happens then:

    warn        the row is kept (the default)
    drop        the row is left out
    fail        the flow fails, with the row in the error
    quarantine  the row is in the table NAME_quarantine instead, with the column `violations`,
                or in a topic (`quarantine_topic`)

In a streaming flow the violations of each expectation are counted, whatever happens to the rows.
`penstock pipeline run` and `status` show the counts. If a row violates several expectations, the
strictest decides: fail, then quarantine, then drop, then warn.

Outside of a declarative pipeline, `check` does the same with a DataFrame.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, get_args

from penstock.spark.quarantine import NONE, ExpectationInvalid, Quarantine, define_topic

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

OnViolation = Literal["warn", "drop", "fail", "quarantine"]
VIOLATIONS_COLUMN: Final = "violations"
"""The column of a quarantine table with the names of the expectations that a row violates."""
METRICS_PREFIX: Final = "penstock.expectations."
"""How the names of the metrics begin under which Spark reports the counts of a flow."""
CHECKED: Final = "rows"
"""The name of the count of all rows among these metrics. No expectation can have this name."""
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
_ROW_CHARS_MAX: Final = 1000

Query = Callable[[], "DataFrame"]


@dataclass(frozen=True, slots=True)
class Expectation:
    """`condition` is a SQL expression over the columns of the flow.

    Example:
        adult = penstock.spark.Expectation("adult", "age >= 18", on_violation="drop")
        print(adult.name, adult.on_violation)
        #> adult drop
    """

    name: str
    condition: str
    on_violation: OnViolation = "warn"

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name) or self.name == CHECKED:
            raise ExpectationInvalid(
                f"an expectation cannot have the name {self.name!r}: use letters, digits and "
                f"underscores, and another name than {CHECKED!r}"
            )
        if not self.condition.strip():
            raise ExpectationInvalid(
                f"the expectation {self.name} has no condition: write one in SQL, such as "
                "'id IS NOT NULL'"
            )
        known = get_args(OnViolation)
        if self.on_violation not in known:
            raise ExpectationInvalid(
                f"the expectation {self.name} has on_violation={self.on_violation!r}: choose one "
                f"of {', '.join(known)}"
            )


class Checked(NamedTuple):
    passed: DataFrame
    quarantined: DataFrame
    """The rows that are quarantined, with the column `violations`."""


class ExpectedQuery:
    """A function that defines a flow, with its expectations. Calling it returns what passes.

    In a declarative pipeline, the first call also defines the table or topic of the quarantine."""

    def __init__(
        self, define: Query, expectations: Sequence[Expectation], quarantine: Quarantine = NONE
    ) -> None:
        functools.update_wrapper(self, define)
        self.__name__ = define.__name__
        self._define = define
        self.expectations = tuple(expectations)
        self.quarantine = quarantine
        self._has_quarantine = False
        names = [each.name for each in expectations]
        if repeated := {name for name in names if names.count(name) > 1}:
            raise ExpectationInvalid(
                f"{self.__name__} has two expectations with the name {min(repeated)}: rename one"
            )

    def __call__(self) -> DataFrame:
        rows = self._define()
        if any(each.on_violation == "quarantine" for each in self.expectations):
            self._define_quarantine(rows)
        elif self.quarantine.topic is not None:
            raise ExpectationInvalid(
                f"{self.__name__} has a quarantine_topic, but no expectation sends rows there: set "
                'on_violation="quarantine", or leave out the topic'
            )
        return check(rows, *self.expectations, flow=self.__name__).passed

    def with_another(self, expectation: Expectation, quarantine: Quarantine) -> ExpectedQuery:
        expectations = (expectation, *self.expectations)
        shared = self.quarantine.joined(quarantine, self.__name__)
        return ExpectedQuery(self._define, expectations, shared)

    def _define_quarantine(self, rows: DataFrame) -> None:
        if self._has_quarantine:
            return
        self._has_quarantine = True
        if self.quarantine.topic is not None and not _is_streaming(rows):
            raise ExpectationInvalid(
                f"{self.__name__} is computed again in every run, so it would send its quarantined "
                "rows again each time: quarantine_topic is for streaming flows, use "
                "quarantine_table here"
            )
        define = self._define_table if self.quarantine.topic is None else self._define_topic
        # Spark accepts no definitions from the thread in which it calls the function of a flow.
        with ThreadPoolExecutor(1) as thread:
            thread.submit(copy_context().run, define, rows).result()

    def _define_table(self, rows: DataFrame) -> None:
        # Scripts without a pipeline may not have Spark Connect, which this import needs.
        from pyspark import pipelines  # noqa: PLC0415 -- see above

        define = pipelines.table if _is_streaming(rows) else pipelines.materialized_view
        define(
            name=self.quarantine.table or f"{self.__name__}_quarantine",
            comment=f"Rows that {self.__name__} does not accept, and why.",
        )(self._quarantined)

    def _define_topic(self, rows: DataFrame) -> None:
        define_topic(self.__name__, self.quarantine, self._quarantined, rows.sparkSession)

    def _quarantined(self) -> DataFrame:
        return check(self._define(), *self.expectations).quarantined


def expect(
    name: str,
    condition: str,
    on_violation: OnViolation = "warn",
    *,
    quarantine_table: str | None = None,
    quarantine_topic: str | None = None,
    quarantine_options: Mapping[str, str] | None = None,
) -> Callable[[Query | ExpectedQuery], ExpectedQuery]:
    """Returns a decorator for the function of a flow. It goes below `@dp.table` and the like.

    All expectations of a flow share one quarantine, and one of them may name it. The default is a
    table that is named after the function. With `quarantine_topic` the rows go to a topic, as JSON;
    `quarantine_options` are further options of that sink, such as `delivery`.

    Example:
        @penstock.spark.expect("adult", "age >= 18", on_violation="drop")
        def people():
            return spark.createDataFrame([("ann", 41), ("bob", 7)], "name STRING, age INT")

        print([row.name for row in people().collect()])
        #> ['ann']
    """
    expectation = Expectation(name, condition, on_violation)
    quarantine = Quarantine(quarantine_table, quarantine_topic, dict(quarantine_options or {}))

    def decorate(query: Query | ExpectedQuery) -> ExpectedQuery:
        if isinstance(query, ExpectedQuery):
            return query.with_another(expectation, quarantine)
        return ExpectedQuery(query, [expectation], quarantine)

    return decorate


def check(rows: DataFrame, *expectations: Expectation, flow: str | None = None) -> Checked:
    """Divides rows into those that pass and those that are quarantined.

    With `flow`, Spark counts the violations of a streaming query and reports them with its
    progress.

    Example:
        people = spark.createDataFrame([("ann", 41), ("bob", 7)], "name STRING, age INT")
        adult = penstock.spark.Expectation("adult", "age >= 18", "quarantine")
        passed, quarantined = penstock.spark.check(people, adult)
        print([row.name for row in passed.collect()])
        print([(row.name, row.violations) for row in quarantined.collect()])
        #> ['ann']
        #> [('bob', ['adult'])]
    """
    from pyspark.sql import functions as sf  # noqa: PLC0415 -- slow to import

    violated = {
        each: ~sf.coalesce(sf.expr(each.condition).cast("boolean"), sf.lit(False))
        for each in expectations
    }

    def any_of(kind: OnViolation) -> Column:
        found = [violated[each] for each in expectations if each.on_violation == kind]
        return functools.reduce(lambda one, other: one | other, found, sf.lit(False))

    counted = rows
    if flow is not None and expectations:
        counts = [sf.sum(violated[each].cast("long")).alias(each.name) for each in expectations]
        counted = rows.observe(METRICS_PREFIX + flow, sf.count(sf.lit(1)).alias(CHECKED), *counts)
    # One condition, because Spark may reorder several filters.
    is_kept = sf.when(any_of("fail"), _failure(expectations, violated))
    is_kept = is_kept.when(any_of("quarantine") | any_of("drop"), sf.lit(False))
    passed = counted.filter(is_kept.otherwise(sf.lit(True)))
    names = [sf.when(violated[each], sf.lit(each.name)) for each in expectations]
    reasons = sf.array_compact(sf.array(*names)) if names else sf.array().cast("array<string>")
    # A row that fails the flow is not written: it is an error, and comes again after the repair.
    is_quarantined = any_of("quarantine") & ~any_of("fail")
    quarantined = rows.filter(is_quarantined).withColumn(VIOLATIONS_COLUMN, reasons)
    return Checked(passed, quarantined)


def _failure(expectations: Iterable[Expectation], violated: dict[Expectation, Column]) -> Column:
    """Returns an expression that fails the query, and says which expectation the row violates."""
    from pyspark.sql import functions as sf  # noqa: PLC0415 -- slow to import

    failing = [each for each in expectations if each.on_violation == "fail"]
    named = sf.coalesce(
        *(sf.when(violated[each], sf.lit(f"{each.name} ({each.condition})")) for each in failing),
        sf.lit(""),
    )
    row = sf.substring(sf.to_json(sf.struct("*")), 1, _ROW_CHARS_MAX)
    message = sf.concat(sf.lit("a row violates the expectation "), named, sf.lit(": "), row)
    return sf.raise_error(message).cast("boolean")


def _is_streaming(rows: DataFrame) -> bool:
    """Returns whether a query is a stream, by its plan: the tables that it reads may not exist yet,
    so Spark cannot be asked."""
    plan = getattr(rows, "_plan", None)
    if plan is None:  # not Spark Connect
        return rows.isStreaming
    found: Any = plan.to_proto(rows.sparkSession.client)
    return _has_stream(found)


def _has_stream(message: Any) -> bool:
    if getattr(message, "is_streaming", False):
        return True
    for field, value in message.ListFields():
        if field.message_type is None:
            continue
        repeated = field.is_repeated if hasattr(field, "is_repeated") else field.label == 3
        for each in value if repeated else [value]:
            if hasattr(each, "ListFields") and _has_stream(each):
                return True
    return False


def violation_counts(observed: object) -> dict[str, dict[str, int]]:
    """Returns the counts in the observed metrics of a progress report: flow -> name -> number.

    The name `CHECKED` stands for all rows."""
    if not isinstance(observed, dict):
        return {}
    return {
        str(name).removeprefix(METRICS_PREFIX): {
            str(each): int(number or 0) for each, number in counts.items()
        }
        for name, counts in observed.items()
        if str(name).startswith(METRICS_PREFIX) and isinstance(counts, dict)
    }
