"""UpdateFeatures, versions 0 to 2: change the level of the cluster's features (KIP-584).

A level that is in force already is accepted. Any other is INVALID_UPDATE_VERSION, with the reason:
the features of a cluster do not change here. One bad update voids the request. Version 1 added the
upgrade type and validate-only, version 2 took away the results of single features.
"""

from __future__ import annotations

from penstock.broker.context import RequestContext
from penstock.broker.features import FEATURES
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import UpdateFeaturesRequest, UpdateFeaturesResponse


def handle(request: UpdateFeaturesRequest, context: RequestContext) -> UpdateFeaturesResponse:
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
    """Why a feature cannot have that level; empty if it has it."""
    feature = FEATURES.get(name)
    if feature is None:
        return f"is not supported; supported are {', '.join(FEATURES)}"
    if not feature.level_min <= level <= feature.level_max:
        return f"has levels {feature.level_min} to {feature.level_max}, not {level}"
    if level != feature.level:
        return f"stays at level {feature.level}, which cannot be changed"
    return ""
