"""Tests how errors of pipelines are shown: the user's own line of code first."""

from __future__ import annotations

import pytest

from penstock.spark.pipelines.events import flow_event
from penstock.spark.pipelines.explain import one_line

ROOT = "/home/ann/shop"
WORKER = """\
[STREAM_FAILED] Query [id = f6, runId = fa] terminated with exception: [PYTHON_EXCEPTION] An \
exception was thrown from the Python worker: Traceback (most recent call last):
  File "/venv/lib/python3.11/site-packages/pyspark/worker.py", line 3210, in main
    process()
  File "/home/ann/shop/transformations/views.py", line 12, in bad
    return parse(user)
           ^^^^^^^^^^^
  File "/usr/lib/python3.11/json/decoder.py", line 355, in raw_decode
    raise JSONDecodeError("Expecting value", s, err.value) from None
{error}
 SQLSTATE: 38000 SQLSTATE: XXKST
=== Streaming Query ===
Identifier: spark_catalog.default.views [id = f6, runId = fa]
"""
ANALYSIS = """\
[UNRESOLVED_COLUMN.WITH_SUGGESTION] A column with name `usr` cannot be resolved. SQLSTATE: 42703
== DataFrame ==
"col" was called from
/home/ann/shop/transformations/views.py:31
"""


def test_an_error_in_a_python_function_names_its_line() -> None:
    """Not the line of a library that it called, nor Spark's words about workers."""
    error = "json.decoder.JSONDecodeError: Expecting value: line 1 column 1 (char 0)"
    told = one_line(WORKER.format(error=error), ROOT)
    assert told == f"transformations/views.py, line 12: {error}"


@pytest.mark.parametrize("error", ["Problem: no such user", "TypeError: not a number", "Gone"])
def test_exceptions_of_any_name_are_found(error: str) -> None:
    told = one_line(WORKER.format(error=error), ROOT)
    assert told == f"transformations/views.py, line 12: {error}"


def test_without_a_project_the_line_is_any_outside_of_libraries() -> None:
    told = one_line(WORKER.format(error="Gone: it is gone"))
    assert told == "views.py, line 12: Gone: it is gone"


def test_an_error_in_a_plan_names_the_line_that_made_it() -> None:
    assert one_line(ANALYSIS, ROOT) == (
        "transformations/views.py, line 31: A column with name `usr` cannot be resolved. "
        "[UNRESOLVED_COLUMN.WITH_SUGGESTION]"
    )


def test_errors_without_own_code_have_no_line() -> None:
    """Such as those in SQL, or in libraries only."""
    text = (
        'Traceback:\n  File "/venv/lib/python3.11/site-packages/x.py", line 1, in f\nOSError: disk'
    )
    assert one_line(text, ROOT) == "OSError: disk"
    assert one_line("[TABLE_NOT_FOUND] no table a", ROOT) == "no table a [TABLE_NOT_FOUND]"


def test_the_event_of_a_failed_flow_has_the_line() -> None:
    message = "Flow 'spark_catalog.default.views' has FAILED more than 2 times.\nError: "
    event = flow_event(message + WORKER.format(error="KeyError: 'a'"), ROOT)
    assert event is not None
    assert event["error"] == "transformations/views.py, line 12: KeyError: 'a'"


def test_tables_that_another_process_uses_are_named() -> None:
    text = (
        "org.apache.hadoop.hive.ql.metadata.HiveException: java.lang.RuntimeException: Unable to "
        "instantiate org.apache.hadoop.hive.ql.metadata.SessionHiveMetaStoreClient\n"
        "Caused by: ERROR XSDB6: Another instance of Derby may have already booted the database "
        "/data/views/metastore_db.\n\tat org.apache.derby.iapi.error.StandardException\n"
    )
    assert one_line(text) == (
        "another process, such as a shell or another run, is using the tables of this pipeline "
        "(/data/views/metastore_db): stop it and try again"
    )
