"""The operations that a client may perform on a resource, as a bit field.

Bit n stands for the operation with code n. Responses contain the field if the request asks for it
(KIP-430). There is no access control, so every client may perform every operation that exists for
the kind of resource. Without such a request, the field has its default, `NOT_ASKED`. Kafka without
an authorizer answers with the same numbers.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final


class Operation(IntEnum):
    """The operation codes of Kafka's ACLs."""

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


def _bits(*operations: Operation) -> int:
    return sum(1 << operation for operation in operations)


NOT_ASKED: Final = -(2**31)
CLUSTER_OPERATIONS: Final = _bits(
    Operation.CREATE,
    Operation.ALTER,
    Operation.DESCRIBE,
    Operation.CLUSTER_ACTION,
    Operation.DESCRIBE_CONFIGS,
    Operation.ALTER_CONFIGS,
    Operation.IDEMPOTENT_WRITE,
)
TOPIC_OPERATIONS: Final = _bits(
    Operation.READ,
    Operation.WRITE,
    Operation.CREATE,
    Operation.DELETE,
    Operation.ALTER,
    Operation.DESCRIBE,
    Operation.DESCRIBE_CONFIGS,
    Operation.ALTER_CONFIGS,
)
GROUP_OPERATIONS: Final = _bits(
    Operation.READ,
    Operation.DELETE,
    Operation.DESCRIBE,
    Operation.DESCRIBE_CONFIGS,
    Operation.ALTER_CONFIGS,
)
