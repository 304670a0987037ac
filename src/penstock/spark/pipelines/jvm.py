"""Access to Spark's objects in the JVM of this process, through py4j."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


def connect_session(classic: Any, session: Any) -> Any:
    """Returns what the Connect server keeps for a session, or None if it has ended."""
    jvm = classic._jvm
    service = getattr(jvm, "org.apache.spark.sql.connect.service.SparkConnectService$")
    key = jvm.org.apache.spark.sql.connect.service.SessionKey(
        session.client._user_id or "", session.session_id
    )
    found = getattr(service, "MODULE$").sessionManager().getIsolatedSessionIfPresent(key)
    return None if found.isEmpty() else found.get()


def items(found: Any, most: int = 1_000) -> Iterator[Any]:
    """Yields the elements of a Scala collection."""
    iterator = found.iterator()
    for _ in range(most):
        if not iterator.hasNext():
            return
        yield iterator.next()
