"""Lets a new share group begin at the first job, not at the jobs that come after its first worker.

Kafka's default is "latest": jobs that were put before the first worker came would be lost for the
group. The setting belongs to the group, so it is set there, before the first worker joins, unless
somebody has set it.
"""

from __future__ import annotations

from typing import Final

from penstock.client.admin.operations import ResourceType, alter_configs, describe_configs
from penstock.client.cluster import Cluster
from penstock.client.errors import BrokerError, ClientError

SETTING: Final = "share.auto.offset.reset"
_GROUP_SOURCE: Final = "DYNAMIC_GROUP_CONFIG"


async def set_group_start(cluster: Cluster, group: str, start: str) -> None:
    """Sets where the group begins, unless the group has the setting."""
    try:
        entries = await describe_configs(cluster, ResourceType.GROUP, group)
        found = next((entry for entry in entries if entry.name == SETTING), None)
        if found is not None and (found.value == start or found.source.name == _GROUP_SOURCE):
            return
        await alter_configs(cluster, ResourceType.GROUP, group, set_values={SETTING: start})
    except BrokerError as error:
        raise ClientError(
            f"cannot set {SETTING}={start} for the share group {group}: {error}. Let an "
            "administrator set it, and give auto_offset_reset=None"
        ) from error
