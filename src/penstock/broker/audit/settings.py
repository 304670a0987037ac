"""Whether this broker keeps an audit record, and where."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.broker.config import BrokerConfig
from penstock.metadata.configs import BrokerConfigs


@dataclass(frozen=True, slots=True)
class AuditSettings:
    is_enabled: bool
    includes_allowed: bool
    """Whether operations are recorded that the authorizer has allowed."""
    log_path: str
    log_bytes_max: int
    log_files_max: int
    has_topic: bool


def audit_settings(configs: BrokerConfigs, config: BrokerConfig) -> AuditSettings:
    has_logins = any(each.sasl is not None for each in config.listener_security.values())
    enabled = configs.text_value("audit.enabled")
    has_authorizer = configs.text_value("authorizer.class.name") != ""
    is_enabled = enabled == "true" or (enabled == "auto" and (has_authorizer or has_logins))
    return AuditSettings(
        is_enabled,
        is_enabled and configs.bool_value("audit.allowed.operations"),
        configs.text_value("audit.log.path") or f"{config.data_dir}/audit.log",
        configs.int_value("audit.log.max.bytes"),
        configs.int_value("audit.log.max.files"),
        configs.bool_value("audit.topic.enabled"),
    )
