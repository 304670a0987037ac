"""AlterClientQuotas, versions 0 and 1: Penstock has no client quotas.

Removing a quota succeeds, since there is none. Setting one is refused: it would not limit any
client. The versions differ in their encoding only.
"""

from __future__ import annotations

from typing import Final

from penstock.broker.context import RequestContext
from penstock.security.acls import AclOperation
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import AlterClientQuotasRequest, AlterClientQuotasResponse

_NO_QUOTAS: Final = "Penstock does not support client quotas: this one would limit nothing."


def handle(request: AlterClientQuotasRequest, context: RequestContext) -> AlterClientQuotasResponse:
    context.require_cluster(AclOperation.ALTER_CONFIGS)
    return AlterClientQuotasResponse(
        entries=[
            _answer(entry, ErrorCode.UNSUPPORTED_VERSION, _NO_QUOTAS)
            if any(not operation.remove for operation in entry.ops)
            else _answer(entry, ErrorCode.NONE, None)
            for entry in request.entries
        ]
    )


def refuse(
    request: AlterClientQuotasRequest, version: int, code: ErrorCode
) -> AlterClientQuotasResponse:
    return AlterClientQuotasResponse(
        entries=[_answer(entry, code, code.message) for entry in request.entries]
    )


def _answer(
    entry: AlterClientQuotasRequest.Entry, code: ErrorCode, message: str | None
) -> AlterClientQuotasResponse.Entry:
    entity = [
        AlterClientQuotasResponse.Entity(each.entity_type, each.entity_name)
        for each in entry.entity
    ]
    return AlterClientQuotasResponse.Entry(code, message, entity)
