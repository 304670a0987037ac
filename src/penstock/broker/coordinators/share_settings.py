"""The settings of share groups: those of the broker, and what single groups override."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from penstock.broker.control.cluster_view import ClusterView
from penstock.groups.config import ShareGroupConfig, ShareGroupSettings
from penstock.metadata.configs import BrokerConfigs, ConfigValue
from penstock.metadata.dead_letter_configs import DEAD_LETTER_COPY, DEAD_LETTER_TOPIC
from penstock.metadata.group_configs import (
    SHARE_ASSIGNMENT_INTERVAL,
    SHARE_DELIVERY_LIMIT,
    SHARE_HEARTBEAT_INTERVAL,
    SHARE_RECORD_LOCK,
    SHARE_RECORD_LOCKS,
    SHARE_SESSION_TIMEOUT,
    group_values,
)
from penstock.metadata.share_group_configs import (
    SHARE_BACKOFF,
    SHARE_BACKOFF_MAX,
    SHARE_ISOLATION,
    SHARE_OFFSET_RESET,
    SHARE_RENEW,
)
from penstock.shares.offset_reset import parse_reset
from penstock.shares.settings import ShareSettings

_NOTHING: Final[Mapping[str, str]] = {}


class _Settings(NamedTuple):
    overrides: Mapping[str, str]
    of_group: ShareGroupSettings
    of_partitions: ShareSettings


class ShareGroupSettingsTable:
    """The settings of all share groups. They follow the configs of groups in the cluster."""

    def __init__(self, configs: BrokerConfigs, cluster: ClusterView) -> None:
        self._configs = configs
        self._cluster = cluster
        self._defaults = self._settings(_NOTHING)
        self._held: dict[str, _Settings] = {}
        """The settings of groups with overrides, as they were last used."""
        self.config: Final = ShareGroupConfig(
            self._defaults.of_group,
            configs.int_value("group.share.max.size"),
            configs.int_value("group.share.initialize.retry.interval.ms"),
        )

    def group_settings_of(self, group_id: str) -> ShareGroupSettings:
        """Returns what the coordinator of a group uses."""
        return self._of(group_id).of_group

    def share_settings_of(self, group_id: str) -> ShareSettings:
        """Returns what the leaders of partitions use for a group. It is cheap."""
        return self._of(group_id).of_partitions

    def _of(self, group_id: str) -> _Settings:
        overrides = self._cluster.image.group_configs.get(group_id)
        if not overrides:
            self._held.pop(group_id, None)
            return self._defaults
        held = self._held.get(group_id)
        if held is None or held.overrides is not overrides:
            held = self._held[group_id] = self._settings(overrides)
        return held

    def _settings(self, overrides: Mapping[str, str]) -> _Settings:
        values = group_values(self._configs, overrides)
        return _Settings(overrides, _of_group(values), _of_partitions(values))


def _of_group(values: Mapping[str, ConfigValue]) -> ShareGroupSettings:
    return ShareGroupSettings(
        session_timeout_ms=_number(values, SHARE_SESSION_TIMEOUT),
        heartbeat_interval_ms=_number(values, SHARE_HEARTBEAT_INTERVAL),
        assignment_interval_ms=_number(values, SHARE_ASSIGNMENT_INTERVAL),
    )


def _of_partitions(values: Mapping[str, ConfigValue]) -> ShareSettings:
    return ShareSettings(
        record_lock_ms=_number(values, SHARE_RECORD_LOCK),
        delivery_limit=_number(values, SHARE_DELIVERY_LIMIT),
        in_flight_max=_number(values, SHARE_RECORD_LOCKS),
        renew_enabled=values[SHARE_RENEW].value is True,
        backoff_ms=_number(values, SHARE_BACKOFF),
        backoff_max_ms=_number(values, SHARE_BACKOFF_MAX),
        read_committed=values[SHARE_ISOLATION].value == "read_committed",
        dead_letter_topic=str(values[DEAD_LETTER_TOPIC].value),
        copies_records=values[DEAD_LETTER_COPY].value is True,
        offset_reset=parse_reset(str(values[SHARE_OFFSET_RESET].value)),
    )


def _number(values: Mapping[str, ConfigValue], name: str) -> int:
    value = values[name].value
    if not isinstance(value, int):
        raise TypeError(f"{name} is {value!r}, not a whole number")
    return value
