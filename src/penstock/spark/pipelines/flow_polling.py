"""How often Spark looks which flows of a round have ended. Pure.

Spark starts the flows of a declarative pipeline in the order of their dependencies. Between two
looks at the flows that run, it sleeps for whole seconds: a setting, at least 1, times 1000
milliseconds. So each level of a small pipeline takes up to a second longer than its work, and so
does the end of the round.

Spark 4.3 multiplies the setting by 1000 as a 64-bit integer, which wraps around. There is a setting
for every multiple of 8 milliseconds: 125 is odd, so it has an inverse modulo 2**61, and
8 * 125 * setting is the time modulo 2**64. Other versions of Spark may compute the time in another
way, and would sleep for ever. So the setting is used only with versions whose code was read.
"""

from __future__ import annotations

from typing import Final

SETTING: Final = "spark.sql.pipelines.execution.streamstate.pollingInterval"
POLL_MS: Final = 48
READ_VERSIONS: Final = frozenset({"4.3.0"})
"""Versions of Spark in which `TriggeredGraphExecution` calls Thread.sleep(setting * 1000L)."""
_STEP_MS: Final = 8
_INVERSE: Final = pow(125, -1, 1 << 61)


def seconds_for(poll_ms: int) -> int:
    """Returns the number of seconds that Spark takes for this many milliseconds."""
    if poll_ms <= 0 or poll_ms % _STEP_MS:
        raise ValueError(f"{poll_ms} is not a multiple of {_STEP_MS} ms: no setting leads to it")
    return poll_ms // _STEP_MS * _INVERSE % (1 << 61)


def polling_settings(spark_version: str) -> dict[str, str]:
    """Returns the setting for this version of Spark; empty if its own must be used."""
    return {SETTING: str(seconds_for(POLL_MS))} if spark_version in READ_VERSIONS else {}
