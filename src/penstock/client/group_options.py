"""Which options of a consumer go with which group protocol. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from penstock.client.errors import OptionError
from penstock.client.option_values import CLASSIC, group_protocol

_CLASSIC_ONLY: Final[Mapping[str, str]] = {
    "session_timeout_ms": "the broker's group.consumer.session.timeout.ms",
    "heartbeat_interval_ms": "the broker's group.consumer.heartbeat.interval.ms",
    "partition_assignment_strategy": "group_remote_assignor",
}
"""The options of the classic protocol, and what takes their place in the new one."""


def check_protocol(keywords: Mapping[str, Any]) -> None:
    """Raises `OptionError` for an option that has no effect in the chosen protocol."""
    protocol = group_protocol("group_protocol", keywords.get("group_protocol", CLASSIC))
    if protocol == CLASSIC:
        if keywords.get("group_remote_assignor") is not None:
            raise OptionError(
                'group_remote_assignor needs group_protocol="consumer": give that too, or use '
                "partition_assignment_strategy"
            )
        return
    for name, instead in _CLASSIC_ONLY.items():
        if name in keywords:
            raise OptionError(
                f'{name} has no effect with group_protocol="consumer": leave it out, and use '
                f"{instead}"
            )
    if keywords.get("group_id") is None:
        raise OptionError('group_protocol="consumer" needs a consumer group: give group_id too')
