"""Writes an automatic rollback to the catalog."""

from __future__ import annotations

import logging

from penstock.client.errors import ClientError
from penstock.spark.deployments.catalog import Catalog
from penstock.spark.deployments.generations import rolled_back
from penstock.spark.deployments.model import Deployment
from penstock.spark.deployments.supervisor_events import RollBack
from penstock.spark.pipelines.errors import PipelineError

_log = logging.getLogger(__name__)


async def roll_back(catalog: Catalog, effect: RollBack, *, worker: str, now_ms: int) -> None:
    """Makes the last version that worked the one that is to run, unless someone has changed that
    in the meantime."""

    def change(known: Deployment) -> Deployment:
        if known.version != effect.failed:
            return known
        return rolled_back(known, effect.version, now_ms)

    text = f"version {effect.failed} failed ({effect.reason}); back to version {effect.version}"
    try:
        await catalog.change(effect.name, change, "rolled-back", text, by=worker)
    except (ClientError, PipelineError) as error:
        # The next failure tries it again.
        _log.warning("cannot roll back %s: %s", effect.name, error)
