"""The keys of the metadata store.

    /penstock/cluster            the cluster id, written once
    /penstock/brokers/ID         a live broker, under its lease
    /penstock/stopping/ID        a broker that is about to stop, under its lease
    /penstock/controller         the controller, under its lease
    /penstock/controller-epoch   the last controller epoch; stays when the lease ends
    /penstock/topics/NAME        one topic: id, overrides, state of all partitions
    /penstock/partitions/ID/N    the Nth chunk of partitions of a large topic (`topic_keys`)
    /penstock/configs/brokers/ID | default    dynamic broker configs
    /penstock/producer-ids       the first producer id that is not allocated yet
    /penstock/users/NAME/N       the SCRAM credential of a user for mechanism N (`user_values`)
    /penstock/decoy-secret       makes the decoys of users that do not exist, written once
    /penstock/tokens/ID          a delegation token, without its HMAC (`token_values`)
    /penstock/token-secret       a check of the secret key of delegation tokens (`token_values`)
    /penstock/acls/TYPE/PATTERN/NAME   the ACLs of one resource pattern (`acls`)
    /penstock/acl-version        written with every change of ACLs or delegation tokens
    /penstock/acl-seen/ID        the last change of ACLs that a broker has applied, under its lease
    /penstock/roles              the roles and their assignments
    /penstock/quotas/ENTITY      the quotas of a user, client id or address (`quota_values`)

The encodings of their values are in `cluster_values`, `config_values`, `topic_values`,
`user_values` and `token_values`, and for ACLs, roles and quotas in `penstock.security`.
"""

from __future__ import annotations

from typing import Final
from urllib.parse import quote, unquote

from penstock.metadata.stored_fields import MetadataInvalid, id_field
from penstock.metadata.topic_ids import to_text
from penstock.security.acls import PatternType, ResourcePattern, ResourceType

PREFIX: Final = "/penstock/"
CLUSTER_KEY: Final = "/penstock/cluster"
CONTROLLER_KEY: Final = "/penstock/controller"
CONTROLLER_EPOCH_KEY: Final = "/penstock/controller-epoch"
PRODUCER_IDS_KEY: Final = "/penstock/producer-ids"
TOPICS_PREFIX: Final = "/penstock/topics/"
PARTITIONS_PREFIX: Final = "/penstock/partitions/"
BROKERS_PREFIX: Final = "/penstock/brokers/"
STOPPING_PREFIX: Final = "/penstock/stopping/"
USERS_PREFIX: Final = "/penstock/users/"
DECOY_SECRET_KEY: Final = "/penstock/decoy-secret"  # noqa: S105 - the name of a key
BROKER_CONFIGS_PREFIX: Final = "/penstock/configs/brokers/"
GROUP_CONFIGS_PREFIX: Final = "/penstock/configs/groups/"
TOKENS_PREFIX: Final = "/penstock/tokens/"
TOKEN_SECRET_KEY: Final = "/penstock/token-secret"  # noqa: S105 - the name of a key
ACLS_PREFIX: Final = "/penstock/acls/"
ACL_VERSION_KEY: Final = "/penstock/acl-version"
ACL_SEEN_PREFIX: Final = "/penstock/acl-seen/"
ROLES_KEY: Final = "/penstock/roles"
QUOTAS_PREFIX: Final = "/penstock/quotas/"
DEFAULT_BROKER: Final = "default"
BROKER_ID_MAX: Final = 2**31 - 1


def topic_key(name: str) -> str:
    return TOPICS_PREFIX + name


def chunk_key(topic_id: bytes, number: int) -> str:
    return f"{PARTITIONS_PREFIX}{to_text(topic_id)}/{number}"


def chunk_of(key: str) -> tuple[bytes, int]:
    """Returns the topic's id and the number of the chunk."""
    id_text, _, number = key.removeprefix(PARTITIONS_PREFIX).partition("/")
    if not (number.isascii() and number.isdigit()) or str(int(number)) != number:
        raise MetadataInvalid(key, f"{number!r} is not the number of a chunk")
    return id_field(key, {"id": id_text}, "id"), int(number)


def broker_key(broker_id: int) -> str:
    return f"{BROKERS_PREFIX}{broker_id}"


def stopping_key(broker_id: int) -> str:
    return f"{STOPPING_PREFIX}{broker_id}"


def broker_config_key(broker_id: int | None) -> str:
    """Returns the key of a broker's dynamic configs. None means the defaults of all brokers."""
    return BROKER_CONFIGS_PREFIX + (DEFAULT_BROKER if broker_id is None else str(broker_id))


def broker_id_of(key: str, prefix: str) -> int:
    text = key.removeprefix(prefix)
    # Accept only the form that `broker_key` writes: "07" and "7" must not be two brokers.
    if not (text.isascii() and text.isdigit()) or str(int(text)) != text:
        raise MetadataInvalid(key, f"{text!r} is not a broker id")
    if int(text) > BROKER_ID_MAX:
        raise MetadataInvalid(key, f"broker ids go up to {BROKER_ID_MAX}")
    return int(text)


def acl_key(pattern: ResourcePattern) -> str:
    """Returns the key of a pattern's ACLs. Special characters in the name are percent-encoded."""
    kind, how = pattern.resource_type.name, pattern.pattern_type.name
    return f"{ACLS_PREFIX}{kind}/{how}/{quote(pattern.name, safe='*')}"


def pattern_of(key: str) -> ResourcePattern:
    """Returns the pattern of an ACL key, or raises `MetadataInvalid`."""
    kind, _, rest = key.removeprefix(ACLS_PREFIX).partition("/")
    how, _, name = rest.partition("/")
    try:
        pattern = ResourcePattern(ResourceType[kind], PatternType[how], unquote(name))
    except KeyError as error:
        raise MetadataInvalid(key, f"{error} is not known here") from error
    if acl_key(pattern) != key:
        raise MetadataInvalid(key, "it is not in the form that this version writes")
    return pattern


def acl_seen_key(broker_id: int) -> str:
    return f"{ACL_SEEN_PREFIX}{broker_id}"
