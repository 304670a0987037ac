"""The audit page: who did what, from where, and which rule allowed or denied it.

Events are read from the topic `__audit` with the rights of the user.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, Final

from penstock.client.audit_topic import FoundEvents, read_audit_topic
from penstock.client.errors import TopicNotFound
from penstock.console.errors import BadRequest, NotFound
from penstock.console.link import Link
from penstock.metadata.model import AUDIT_TOPIC
from penstock.security.audit import AuditQuery

LIMIT_MAX: Final = 1_000


class Audit:
    def __init__(self, link: Link) -> None:
        self._link = link

    async def listed(
        self, since: str, user: str, action: str, outcome: str, limit: int
    ) -> dict[str, Any]:
        """Returns the last events that match, the newest first."""
        try:
            query = AuditQuery.parse(
                self._link.env.clock.wall_ms(),
                since or "1h",
                None,
                user or None,
                action or None,
                outcome or None,
            )
        except ValueError as error:
            raise BadRequest(str(error)) from error
        found = FoundEvents(query, max(1, min(limit, LIMIT_MAX)))
        async with self._link.consumer() as consumer:
            try:
                await read_audit_topic(consumer, found)
            except TopicNotFound as error:
                raise NotFound(
                    f"there is no topic {AUDIT_TOPIC}, or you may not read it: see audit.enabled "
                    "and audit.topic.enabled in the settings of the brokers"
                ) from error
        return {
            "events": [asdict(event) for event in reversed(found.in_order())],
            "left_out": found.left_out,
        }
