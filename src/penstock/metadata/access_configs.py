"""Settings of access control, under Kafka's names. As in Kafka they come from the config file."""

from __future__ import annotations

from typing import Final

from penstock.metadata.config_types import ConfigType, Definition, Value
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
