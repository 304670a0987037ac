"""Access rules (ACLs): their fields, the rules that a new one must follow, and their stored form.

An ACL says that a principal may or may not perform an operation on a resource from a host. The
resource is one name, every name (`*`), or every name with a prefix. The numbers, the names and the
checks are Kafka's. `authorizer` decides by ACLs, and `acl_filters` lists, creates and deletes them.

Hosts are IP addresses, compared as addresses: `::ffff:10.0.0.1` is the same host as `10.0.0.1`, and
all spellings of an IPv6 address are equal. The zone of an address, such as `%eth0`, does not count.
As in Kafka, a host that is not an address is accepted, but no client ever matches it:
`host_warning` says so.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from ipaddress import ip_address
from types import MappingProxyType
from typing import Final

from penstock.security.addresses import canonical
from penstock.wire.errors import ErrorCode


class ResourceType(IntEnum):
    """The types of resources, by Kafka's numbers. Any other number reads as UNKNOWN."""

    UNKNOWN = 0
    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7

    @classmethod
    def _missing_(cls, value: object) -> ResourceType:
        return cls.UNKNOWN


class PatternType(IntEnum):
    """How the name of an ACL or a filter is compared, by Kafka's numbers.

    ACLs are LITERAL or PREFIXED. ANY and MATCH are for filters. Any other number reads as UNKNOWN.
    """

    UNKNOWN = 0
    ANY = 1
    MATCH = 2
    LITERAL = 3
    PREFIXED = 4

    @classmethod
    def _missing_(cls, value: object) -> PatternType:
        return cls.UNKNOWN


class AclOperation(IntEnum):
    """The operations, by Kafka's numbers. Any other number reads as UNKNOWN."""

    UNKNOWN = 0
    ANY = 1
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14
    TWO_PHASE_COMMIT = 15

    @classmethod
    def _missing_(cls, value: object) -> AclOperation:
        return cls.UNKNOWN


class PermissionType(IntEnum):
    """Whether an ACL allows or denies, by Kafka's numbers. Any other number reads as UNKNOWN."""

    UNKNOWN = 0
    ANY = 1
    DENY = 2
    ALLOW = 3

    @classmethod
    def _missing_(cls, value: object) -> PermissionType:
        return cls.UNKNOWN


CLUSTER_NAME: Final = "kafka-cluster"
"""The name of the only resource of type CLUSTER."""

WILDCARD: Final = "*"
"""As a literal resource name: every resource of the type. As a host: every host."""

TEXT_LENGTH_MAX: Final = 32_767
"""The longest name, principal or host of an ACL, in characters: Kafka's limit for a string."""

SINGLE_OPERATIONS: Final[tuple[AclOperation, ...]] = tuple(
    operation for operation in AclOperation if operation > AclOperation.ALL
)
"""The operations that a request can need. ALL stands for all of them."""

ALL_BITS: Final = sum(1 << operation for operation in SINGLE_OPERATIONS)
"""The bit field with every single operation."""

OPERATIONS_NOT_REQUESTED: Final = -(1 << 31)
"""The bit field in a response if the request did not ask for authorized operations."""


def operation_bits(operations: Iterable[AclOperation]) -> int:
    """Returns Kafka's bit field of operations: bit `n` stands for operation number `n`."""
    bits = 0
    for operation in operations:
        bits |= 1 << operation
    return bits


SUPPORTED_BITS: Final[Mapping[ResourceType, int]] = MappingProxyType(
    {
        ResourceType.TOPIC: operation_bits(
            (
                AclOperation.READ,
                AclOperation.WRITE,
                AclOperation.CREATE,
                AclOperation.DELETE,
                AclOperation.ALTER,
                AclOperation.DESCRIBE,
                AclOperation.DESCRIBE_CONFIGS,
                AclOperation.ALTER_CONFIGS,
            )
        ),
        ResourceType.GROUP: operation_bits(
            (
                AclOperation.READ,
                AclOperation.DELETE,
                AclOperation.DESCRIBE,
                AclOperation.DESCRIBE_CONFIGS,
                AclOperation.ALTER_CONFIGS,
            )
        ),
        ResourceType.CLUSTER: operation_bits(
            (
                AclOperation.CREATE,
                AclOperation.ALTER,
                AclOperation.DESCRIBE,
                AclOperation.CLUSTER_ACTION,
                AclOperation.DESCRIBE_CONFIGS,
                AclOperation.ALTER_CONFIGS,
                AclOperation.IDEMPOTENT_WRITE,
            )
        ),
        ResourceType.TRANSACTIONAL_ID: operation_bits(
            (AclOperation.WRITE, AclOperation.DESCRIBE, AclOperation.TWO_PHASE_COMMIT)
        ),
        ResourceType.DELEGATION_TOKEN: operation_bits((AclOperation.DESCRIBE,)),
        ResourceType.USER: operation_bits(
            (AclOperation.CREATE_TOKENS, AclOperation.DESCRIBE_TOKENS)
        ),
    }
)
"""The operations that the bit field of authorized operations can contain, by resource type.

All of them are 3576 for a topic, 3400 for a group and 8096 for the cluster. An ACL may name any
operation for any type.
"""

_IMPLIED: Final[Mapping[AclOperation, AclOperation]] = {
    AclOperation.READ: AclOperation.DESCRIBE,
    AclOperation.WRITE: AclOperation.DESCRIBE,
    AclOperation.DELETE: AclOperation.DESCRIBE,
    AclOperation.ALTER: AclOperation.DESCRIBE,
    AclOperation.ALTER_CONFIGS: AclOperation.DESCRIBE_CONFIGS,
}


def allowed_bits(operation: AclOperation) -> int:
    """Returns the operations that an ALLOW of `operation` allows, the implied one included."""
    if operation == AclOperation.ALL:
        return ALL_BITS
    implied = _IMPLIED.get(operation)
    return 1 << operation if implied is None else 1 << operation | 1 << implied


def denied_bits(operation: AclOperation) -> int:
    """Returns the operations that a DENY of `operation` denies. A DENY implies nothing."""
    return ALL_BITS if operation == AclOperation.ALL else 1 << operation


def normalized_host(host: str) -> str:
    """Returns the one spelling of an IP address. A text that is not an address is unchanged.

    The zone of an IPv6 address is dropped, because the address of a client can come without it.
    """
    if host == WILDCARD:
        return host
    try:
        return canonical(host)
    except ValueError:
        return host


class AclRefused(ValueError):
    """An ACL or a filter was refused; `code` is the Kafka error to answer with."""

    def __init__(self, message: str, code: ErrorCode = ErrorCode.INVALID_REQUEST) -> None:
        super().__init__(message)
        self.code = code


class StoredAclInvalid(ValueError):
    """The stored ACLs cannot be read. A broker must not guess at them: it refuses requests."""


@dataclass(frozen=True, slots=True, order=True)
class Principal:
    """A user or another identity. Its text form is `type:name`, such as `User:alice`."""

    type: str
    name: str

    def __str__(self) -> str:
        return f"{self.type}:{self.name}"


def parse_principal(text: str) -> Principal:
    """Returns the principal for a text such as `User:alice`. The name may contain colons."""
    kind, colon, name = text.partition(":")
    if not colon:
        raise AclRefused(
            f"the principal {_shown(text)} has no type: write it as User:name, such as User:alice"
        )
    return Principal(kind, name)


def user_principal(name: str) -> str:
    """Returns the text form of the principal of a user."""
    return f"User:{name}"


ANONYMOUS: Final = "User:ANONYMOUS"
"""The principal of a client that did not authenticate."""

ANY_PRINCIPAL: Final = "User:*"
"""In an ACL: every principal."""


@dataclass(frozen=True, slots=True, order=True)
class ResourcePattern:
    """The resources that an ACL is about: one name, `*` for all, or all names with a prefix."""

    resource_type: ResourceType
    pattern_type: PatternType
    name: str

    def __str__(self) -> str:
        kind = self.resource_type.name
        if self.pattern_type == PatternType.PREFIXED:
            return f"{kind} names that start with {_shown(self.name)}"
        if self.pattern_type == PatternType.LITERAL and self.name == WILDCARD:
            return f"every {kind}"
        return f"{kind} {_shown(self.name)}"


@dataclass(frozen=True, slots=True, order=True)
class AclBinding:
    """One ACL. Its host is kept in the spelling of `normalized_host`, so equal ACLs are equal."""

    resource_type: ResourceType
    pattern_type: PatternType
    resource_name: str
    principal: str
    host: str
    operation: AclOperation
    permission: PermissionType

    def __post_init__(self) -> None:
        if self.host != WILDCARD:
            object.__setattr__(self, "host", normalized_host(self.host))

    @property
    def pattern(self) -> ResourcePattern:
        """The resources that this ACL is about."""
        return ResourcePattern(self.resource_type, self.pattern_type, self.resource_name)

    def __str__(self) -> str:
        host = "any host" if self.host == WILDCARD else f"host {_shown(self.host)}"
        return (
            f"{self.permission.name} {self.operation.name} on {self.pattern} for "
            f"{_shown(self.principal)} from {host}"
        )


_SHOWN_MAX: Final = 120


def _shown(text: str) -> str:
    """Returns a client's text for a message: quoted and shortened, without control characters."""
    return repr(text if len(text) <= _SHOWN_MAX else f"{text[:_SHOWN_MAX]}...")


_TYPES_OF_ACLS: Final = frozenset(ResourceType) - {ResourceType.UNKNOWN, ResourceType.ANY}
_PATTERNS_OF_ACLS: Final = frozenset({PatternType.LITERAL, PatternType.PREFIXED})
_OPERATIONS_OF_ACLS: Final = frozenset(SINGLE_OPERATIONS) | {AclOperation.ALL}
_PERMISSIONS_OF_ACLS: Final = frozenset({PermissionType.ALLOW, PermissionType.DENY})
_CLUSTER: Final = ResourceType.CLUSTER


def check_binding(binding: AclBinding) -> None:
    """Raises `AclRefused` if Kafka would not create this ACL.

    As in Kafka, an operation that the resource type does not have is accepted.
    """
    check_pattern(binding.resource_type, binding.pattern_type, binding.resource_name)
    if binding.operation not in _OPERATIONS_OF_ACLS:
        raise AclRefused(
            f"an ACL cannot have the operation {binding.operation.name}: name one operation, or ALL"
        )
    if binding.permission not in _PERMISSIONS_OF_ACLS:
        raise AclRefused(
            f"an ACL cannot have the permission {binding.permission.name}: use ALLOW or DENY"
        )
    parse_principal(binding.principal)
    if len(binding.principal) > TEXT_LENGTH_MAX or len(binding.host) > TEXT_LENGTH_MAX:
        raise AclRefused(
            f"the principal has {len(binding.principal)} characters and the host "
            f"{len(binding.host)}: use at most {TEXT_LENGTH_MAX} for each"
        )


def host_warning(binding: AclBinding) -> str | None:
    """Returns a warning if no client ever matches the host of this ACL, else None.

    Kafka accepts such an ACL, so `check_binding` does too. A DENY of this kind denies nothing.
    """
    if binding.host == WILDCARD:
        return None
    try:
        ip_address(binding.host)
    except ValueError:
        return (
            f"the host {_shown(binding.host)} is not an IP address, so this ACL never matches a "
            "client: use an address, such as 10.0.0.1, or * for every host"
        )
    return None


def check_pattern(resource_type: ResourceType, pattern_type: PatternType, name: str) -> None:
    """Raises `AclRefused` if no ACL can be about these resources."""
    if resource_type not in _TYPES_OF_ACLS:
        raise AclRefused(
            f"an ACL cannot have the resource type {resource_type.name}: use TOPIC, "
            "GROUP, CLUSTER, TRANSACTIONAL_ID, DELEGATION_TOKEN or USER"
        )
    if pattern_type not in _PATTERNS_OF_ACLS:
        raise AclRefused(
            f"an ACL cannot have the pattern type {pattern_type.name}: use LITERAL or PREFIXED"
        )
    if not name:
        raise AclRefused("the resource name is empty: use the LITERAL name * for all resources")
    if len(name) > TEXT_LENGTH_MAX:
        raise AclRefused(
            f"the resource name has {len(name)} characters: use at most {TEXT_LENGTH_MAX}"
        )
    if resource_type == _CLUSTER and name != CLUSTER_NAME:
        raise AclRefused(f"the cluster cannot have the name {_shown(name)}: use {CLUSTER_NAME}")


_STORED_VERSION: Final = 1
_STORED_FIELDS: Final = 7


def acl_row(binding: AclBinding) -> list[str]:
    """Returns the stored form of one ACL: seven texts that JSON can hold."""
    return [
        binding.resource_type.name,
        binding.pattern_type.name,
        binding.resource_name,
        binding.principal,
        binding.host,
        binding.operation.name,
        binding.permission.name,
    ]


def acl_of_row(row: object) -> AclBinding:
    """Returns the ACL that `acl_row` made this row of, or raises `StoredAclInvalid`."""
    if (
        not isinstance(row, list)
        or len(row) != _STORED_FIELDS
        or not all(isinstance(text, str) for text in row)
    ):
        raise StoredAclInvalid(f"a stored ACL is not a list of seven strings: {repr(row)[:200]}")
    resource_type, pattern_type, name, principal, host, operation, permission = row
    try:
        binding = AclBinding(
            ResourceType[resource_type],
            PatternType[pattern_type],
            name,
            principal,
            host,
            AclOperation[operation],
            PermissionType[permission],
        )
        check_binding(binding)
    except KeyError as error:
        raise StoredAclInvalid(
            f"a stored ACL contains {error}, which this version does not know: upgrade this broker"
        ) from None
    except AclRefused as error:
        raise StoredAclInvalid(f"a stored ACL is not valid: {error}") from error
    return binding


def encode_acls(bindings: Iterable[AclBinding]) -> str:
    """Returns the stored form of a set of ACLs: equal sets have equal texts."""
    rows = [acl_row(binding) for binding in sorted(set(bindings))]
    return json.dumps({"version": _STORED_VERSION, "acls": rows}, separators=(",", ":"))


def decode_acls(text: str | bytes) -> frozenset[AclBinding]:
    """Returns the ACLs of a text that `encode_acls` made, or raises `StoredAclInvalid`."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise StoredAclInvalid(
            f"the stored ACLs are not valid JSON ({type(error).__name__}): restore them from a copy"
        ) from error
    if not isinstance(document, dict) or document.get("version") != _STORED_VERSION:
        raise StoredAclInvalid(
            f"the stored ACLs do not have version {_STORED_VERSION}: upgrade this broker, or "
            "restore them from a copy"
        )
    rows = document.get("acls")
    if not isinstance(rows, list):
        raise StoredAclInvalid("the stored ACLs have no list of ACLs: restore them from a copy")
    return frozenset(map(acl_of_row, rows))
