"""Settings of access control, under Kafka's names, and of the audit record. They come from the
config file."""

from __future__ import annotations

from typing import Final

from penstock.metadata.config_types import ConfigType, Definition, Value, at_least
from penstock.security.acls import AclRefused
from penstock.security.authorizer import parse_super_users

AUTHORIZER_CLASSES: Final = (
    "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "kafka.security.authorizer.AclAuthorizer",
    "penstock",
)
"""The values of `authorizer.class.name` that turn access control on: Kafka's two classes, so that
config files can be kept, and Penstock's own name."""


def _check_class(value: Value) -> str | None:
    if value in ("", *AUTHORIZER_CLASSES):
        return None
    return (
        f"set it to one of {', '.join(AUTHORIZER_CLASSES)} to turn access control on, or leave it "
        "empty to allow everything"
    )


def _check_super_users(value: Value) -> str | None:
    try:
        parse_super_users(str(value))
    except AclRefused as error:
        return f"{error}; separate several with semicolons"
    return None


def _check_enabled(value: Value) -> str | None:
    return None if value in ("auto", "true", "false") else "use auto, true or false"


AUDIT_CONFIGS: Final = (
    Definition(
        "audit.enabled",
        ConfigType.STRING,
        "auto",
        "Whether the broker records who did what. auto: if there is an authorizer or a listener "
        "with SASL.",
        _check_enabled,
        dynamic=False,
    ),
    Definition(
        "audit.allowed.operations",
        ConfigType.BOOLEAN,
        False,
        "Whether the audit record also has the operations that the authorizer allowed. Equal ones "
        "are recorded once per minute, and produce requests once per connection.",
        dynamic=False,
    ),
    Definition(
        "audit.log.path",
        ConfigType.STRING,
        "",
        "The file of the audit log. If empty, audit.log in the data directory.",
        dynamic=False,
    ),
    Definition(
        "audit.log.max.bytes",
        ConfigType.LONG,
        100 << 20,
        "The size at which the audit log is rotated: audit.log becomes audit.log.1.",
        at_least(1 << 20),
        dynamic=False,
    ),
    Definition(
        "audit.log.max.files",
        ConfigType.INT,
        10,
        "How many files of the audit log are kept, the current one included.",
        at_least(1),
        dynamic=False,
    ),
    Definition(
        "audit.topic.enabled",
        ConfigType.BOOLEAN,
        True,
        "Whether audit events are also written to the topic __audit.",
        dynamic=False,
    ),
    Definition(
        "audit.topic.num.partitions",
        ConfigType.INT,
        1,
        "The number of partitions with which __audit is created.",
        at_least(1),
        dynamic=False,
    ),
    Definition(
        "audit.topic.replication.factor",
        ConfigType.SHORT,
        3,
        "The replica count of __audit; it is created once there are as many brokers.",
        at_least(1),
        dynamic=False,
    ),
    Definition(
        "audit.topic.retention.ms",
        ConfigType.LONG,
        90 * 24 * 3_600_000,
        "The retention.ms with which __audit is created; -1 keeps events forever. Later, change "
        "retention.ms of the topic.",
        at_least(-1),
        dynamic=False,
    ),
)
"""Settings of the audit record. Kafka has none of them."""

ACCESS_CONFIGS: Final = (
    Definition(
        "authorizer.class.name",
        ConfigType.STRING,
        "",
        "Turns access control by ACLs on. If empty, every client may do everything.",
        _check_class,
        dynamic=False,
    ),
    Definition(
        "super.users",
        ConfigType.STRING,
        "",
        "The principals that may do everything, such as User:admin;User:broker. The brokers "
        "themselves must be among them, or have CLUSTER_ACTION on the cluster.",
        _check_super_users,
        dynamic=False,
    ),
    Definition(
        "allow.everyone.if.no.acl.found",
        ConfigType.BOOLEAN,
        False,
        "Whether everyone may use a resource that no ACL names.",
        dynamic=False,
    ),
)

TOKEN_CONFIGS: Final = (
    Definition(
        "delegation.token.secret.key",
        ConfigType.PASSWORD,
        "",
        "The key from which the HMACs of delegation tokens are derived, the same on all brokers. "
        "Without one, here or in delegation.token.secret.key.file or in the environment variable "
        "PENSTOCK_DELEGATION_TOKEN_SECRET_KEY, there are no delegation tokens.",
        dynamic=False,
        sensitive=True,
    ),
    Definition(
        "delegation.token.secret.key.file",
        ConfigType.STRING,
        "",
        "The file with delegation.token.secret.key. Kafka does not have this setting.",
        dynamic=False,
    ),
    Definition(
        "delegation.token.max.lifetime.ms",
        ConfigType.LONG,
        7 * 24 * 3_600_000,
        "How long a delegation token can be renewed, from its creation on.",
        at_least(1),
        dynamic=False,
    ),
    Definition(
        "delegation.token.expiry.time.ms",
        ConfigType.LONG,
        24 * 3_600_000,
        "How long a delegation token lasts if it is not renewed.",
        at_least(1),
        dynamic=False,
    ),
    Definition(
        "delegation.token.expiry.check.interval.ms",
        ConfigType.LONG,
        3_600_000,
        "How often delegation tokens that have expired are removed from the metadata store. They "
        "are not accepted from their expiry on.",
        at_least(1),
        dynamic=False,
    ),
)
"""Settings of delegation tokens (KIP-48)."""
