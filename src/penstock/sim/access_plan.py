"""The users of a scenario with access control, and the settings of its brokers.

Clients log in with SASL on a listener of their own, and brokers connect to each other on another
one. `admin` is a super user: operators and checkers log in as `admin`, with a password that the
brokers have in their settings. All other clients are `app`, which has all rights, by ACLs. The
rights of `guest` change during the run. `visitor` has no rights, and its password is deleted and
set again. In some scenarios `holder` has delegation tokens, which are created, renewed and expired.
It can use one group. There is no TLS, because its randomness cannot be simulated.
"""

from __future__ import annotations

from typing import Any, Final

from penstock.aio import Admin
from penstock.security.acls import (
    CLUSTER_NAME,
    AclBinding,
    AclOperation,
    PatternType,
    PermissionType,
    ResourceType,
)
from penstock.security.client_login import PasswordLogin
from penstock.security.scram_credentials import ITERATIONS_MIN

BROKERS_LOG_IN: Final = "brokers log in"
BROKERS_IN_PLAIN_TEXT: Final = "brokers in plain text"
"""How brokers connect to each other: as the user `broker`, or without a login."""

ADMIN: Final = "admin"
APP: Final = "app"
GUEST: Final = "guest"
VISITOR: Final = "visitor"
HOLDER: Final = "holder"
TENANT: Final = "tenant"
"""The user of all clients with quotas. It has all rights."""
GUEST_TOPIC: Final = "guests-of-the-cluster-who-come-and-go-all-day"
GUEST_GROUP: Final = GUEST_TOPIC
"""Long names have many prefixes, and each prefix is used for one ACL only."""

HOLDER_GROUP: Final = "the-group-of-the-holder"
OTHERS_GROUP: Final = "a-group-of-others"

ACTOR_USERS: Final = {user: user for user in (ADMIN, GUEST, VISITOR, HOLDER, TENANT)}
"""By the first part of a client's name: as whom it logs in. All others are `app`."""

WRITE: Final = "write"
READ: Final = "read"
GROUP: Final = "group"
RIGHTS: Final = {
    WRITE: (ResourceType.TOPIC, GUEST_TOPIC, AclOperation.WRITE),
    READ: (ResourceType.TOPIC, GUEST_TOPIC, AclOperation.READ),
    GROUP: (ResourceType.GROUP, GUEST_GROUP, AclOperation.READ),
}
"""The rights of the guest that change. It can always describe its topic and its group."""

PLAIN: Final = "PLAIN"
SCRAM: Final = "SCRAM-SHA-256"
_MODULE: Final = "org.apache.kafka.common.security.plain.PlainLoginModule"
_EVERYTHING: Final = (
    ResourceType.TOPIC,
    ResourceType.GROUP,
    ResourceType.TRANSACTIONAL_ID,
    ResourceType.CLUSTER,
)


def password_of(user: str) -> str:
    return f"password of {user}"


def broker_settings(access: str, *, tokens: bool = False) -> tuple[tuple[str, str], ...]:
    """Returns the settings of every broker. Nothing without access control."""
    if not access:
        return ()
    logs_in = access == BROKERS_LOG_IN
    jaas = f'{_MODULE} required user_{ADMIN}="{password_of(ADMIN)}"'
    secret = password_of("broker")
    between = f'{_MODULE} required username="broker" password="{secret}" user_broker="{secret}";'
    protocol = "SASL_PLAINTEXT" if logs_in else "PLAINTEXT"
    settings = {
        "listeners": "CLIENTS://{host}:9092,BROKERS://{host}:9093",
        "listener.security.protocol.map": f"CLIENTS:SASL_PLAINTEXT,BROKERS:{protocol}",
        "inter.broker.listener.name": "BROKERS",
        "listener.name.clients.sasl.enabled.mechanisms": f"{SCRAM},{PLAIN}",
        "listener.name.clients.plain.sasl.jaas.config": f"{jaas};",
        "authorizer.class.name": "penstock",
        "super.users": f"User:{ADMIN};User:{'broker' if logs_in else 'ANONYMOUS'}",
    }
    if logs_in:
        settings |= {
            "listener.name.brokers.sasl.enabled.mechanisms": PLAIN,
            "listener.name.brokers.plain.sasl.jaas.config": between,
            "sasl.mechanism.inter.broker.protocol": PLAIN,
        }
    if tokens:
        settings |= {
            "delegation.token.secret.key": password_of("all delegation tokens"),
            "delegation.token.expiry.check.interval.ms": "8000",
        }
    return tuple(settings.items())


def mechanism_of(user: str) -> str:
    return PLAIN if user == ADMIN else SCRAM


def login_of(user: str) -> PasswordLogin:
    return PasswordLogin(mechanism_of(user), user, password_of(user))


def login_keywords(user: str) -> dict[str, Any]:
    """Returns the options with which one of the library's clients logs in."""
    return {
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": mechanism_of(user),
        "sasl_username": user,
        "sasl_password": password_of(user),
    }


def allowed(
    user: str, resource_type: ResourceType, name: str, operation: AclOperation
) -> AclBinding:
    """Returns the ACL that gives a user one right."""
    return AclBinding(
        resource_type,
        PatternType.LITERAL,
        name,
        f"User:{user}",
        "*",
        operation,
        PermissionType.ALLOW,
    )


async def prepare_access(
    admin: Admin, *, has_tenants: bool = False, has_tokens: bool = False
) -> None:
    """Creates the users, and their first rights. Raises `ClientError`."""
    mighty = (APP, TENANT) if has_tenants else (APP,)
    holders = (HOLDER,) if has_tokens else ()
    for user in (*mighty, GUEST, VISITOR, *holders):
        await admin.upsert_scram_user(user, password_of(user), SCRAM, ITERATIONS_MIN)
    acls = [
        allowed(user, each, CLUSTER_NAME if each == ResourceType.CLUSTER else "*", AclOperation.ALL)
        for user in mighty
        for each in _EVERYTHING
    ]
    acls.append(allowed(GUEST, ResourceType.TOPIC, GUEST_TOPIC, AclOperation.DESCRIBE))
    acls.append(allowed(GUEST, ResourceType.GROUP, GUEST_GROUP, AclOperation.DESCRIBE))
    for user in holders:
        acls.append(allowed(user, ResourceType.GROUP, HOLDER_GROUP, AclOperation.READ))
    for error in (await admin.create_acls(acls)).values():
        if error is not None:
            raise error
