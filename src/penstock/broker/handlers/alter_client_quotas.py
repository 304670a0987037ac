"""AlterClientQuotas, versions 0 and 1: sets and removes the quotas of users, client ids and
addresses.

The entities of a request are independent of each other: an error of one does not affect the others.
An entity that is named twice is refused. The versions differ in their encoding only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Final

from penstock.broker.context import RequestContext
from penstock.broker.handlers.large_requests import one_by_one
from penstock.metadata.quotas import alter_quotas
from penstock.security.acls import AclOperation
from penstock.security.quotas import QuotaAlteration, QuotaEntity, QuotaResult, parse_entity
from penstock.wire.errors import ErrorCode, KafkaError
from penstock.wire.messages import AlterClientQuotasRequest, AlterClientQuotasResponse

ENTITIES_PER_COMMIT: Final = 100
"""etcd accepts 128 operations in a transaction."""


def handle(
    request: AlterClientQuotasRequest, context: RequestContext
) -> asyncio.Future[AlterClientQuotasResponse]:
    context.require_cluster(AclOperation.ALTER_CONFIGS)
    return context.spawn(_run(request, context))


async def _run(
    request: AlterClientQuotasRequest, context: RequestContext
) -> AlterClientQuotasResponse:
    slices = context.slices()
    context.is_large = context.is_large or len(request.entries) > context.slicing.elements
    entries = await one_by_one(_alteration, request.entries, slices)
    results: dict[int, QuotaResult] = {}
    for numbers in _portions(await one_by_one(_entity, entries, slices)):
        decide = partial(
            alter_quotas,
            entries=[entries[number] for number in numbers],
            validate_only=request.validate_only,
        )
        if request.validate_only:
            decided = decide(context.services.image).result
        else:
            decided = await context.services.controller.decide(decide)
        results.update(zip(numbers, decided, strict=True))
        await slices.give_way()
    ordered = [results[number] for number in range(len(entries))]
    return AlterClientQuotasResponse(entries=await one_by_one(_answer, ordered, slices))


def _alteration(entry: AlterClientQuotasRequest.Entry) -> QuotaAlteration:
    return QuotaAlteration(
        tuple((each.entity_type, each.entity_name) for each in entry.entity),
        tuple((each.key, None if each.remove else each.value) for each in entry.ops),
    )


def _entity(entry: QuotaAlteration) -> QuotaEntity | None:
    try:
        return parse_entity(entry.entity)
    except KafkaError:
        return None  # `alter_quotas` says what is wrong.


def _portions(entities: Sequence[QuotaEntity | None]) -> list[list[int]]:
    """Returns the numbers of the entries for each commit.

    The entries of one entity are in the same portion, where `alter_quotas` refuses them.
    """
    numbers: dict[QuotaEntity | int, list[int]] = {}
    for number, entity in enumerate(entities):
        numbers.setdefault(number if entity is None else entity, []).append(number)
    groups = list(numbers.values())
    return [
        [number for group in groups[start : start + ENTITIES_PER_COMMIT] for number in group]
        for start in range(0, len(groups), ENTITIES_PER_COMMIT)
    ]


def _answer(result: QuotaResult) -> AlterClientQuotasResponse.Entry:
    entity = [AlterClientQuotasResponse.Entity(kind, name) for kind, name in result.entity]
    return AlterClientQuotasResponse.Entry(result.code, result.message, entity)


def refuse(
    request: AlterClientQuotasRequest, version: int, code: ErrorCode
) -> AlterClientQuotasResponse:
    return AlterClientQuotasResponse(
        entries=[
            _answer(QuotaResult(_alteration(entry).entity, code, code.message))
            for entry in request.entries
        ]
    )
