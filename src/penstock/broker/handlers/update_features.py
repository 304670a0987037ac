"""UpdateFeatures, versions 0 to 2: changes the level of the cluster's features (KIP-584).

A level that is already in force is accepted. Any other is refused with INVALID_UPDATE_VERSION and
the reason: the features of a cluster cannot be changed here. One bad update fails the whole
request. Version 1 added the upgrade type and validate-only, version 2 removed the per-feature
results.
"""

from __future__ import annotations

from penstock.broker.context import RequestContext
from penstock.broker.handlers.features import FEATURES
from penstock.security.acls import AclOperation
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import UpdateFeaturesRequest, UpdateFeaturesResponse


def handle(request: UpdateFeaturesRequest, context: RequestContext) -> UpdateFeaturesResponse:
    context.require_cluster(AclOperation.ALTER)
    for update in request.feature_updates:
        problem = _problem(update.feature, update.max_version_level)
        if problem:
            return UpdateFeaturesResponse(
                error_code=ErrorCode.INVALID_UPDATE_VERSION,
                error_message=f"No feature was changed: {update.feature} {problem}.",
            )
    return UpdateFeaturesResponse(
        error_message=None,
        results=[
            UpdateFeaturesResponse.Result(update.feature, ErrorCode.NONE, None)
            for update in request.feature_updates
        ],
    )


def _problem(name: str, level: int) -> str:
    """Returns why a feature cannot have that level; empty if it already has it."""
    feature = FEATURES.get(name)
    if feature is None:
        return f"is not supported; the supported features are {', '.join(FEATURES)}"
    if not feature.level_min <= level <= feature.level_max:
        return f"has levels {feature.level_min} to {feature.level_max}, not {level}"
    if level != feature.level:
        return f"stays at level {feature.level}, which cannot be changed"
    return ""
