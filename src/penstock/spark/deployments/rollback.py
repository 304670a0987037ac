"""Returns a deployment to an earlier version: after failures, or because a person asks for it."""

from __future__ import annotations

import logging
from collections.abc import Callable

from penstock.client.errors import ClientError
from penstock.spark.deployments.catalog import Catalog
from penstock.spark.deployments.catalog_errors import ChangeConflict
from penstock.spark.deployments.generations import brings_tables, rolled_back
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


def asked_rollback(
    compared: Deployment, version: int, now_ms: int
) -> tuple[Callable[[Deployment], Deployment], str]:
    """Returns the change for a rollback that a person asks for, and the text for the history. The
    change raises `ChangeConflict` if the deployment is no longer the one that was compared, or if
    the kept tables have expired since."""
    with_tables = brings_tables(compared, version)

    def change(known: Deployment) -> Deployment:
        is_other = known.version != compared.version or known.recompute is not None
        if is_other or brings_tables(known, version) != with_tables:
            raise ChangeConflict(known.name)
        return rolled_back(known, version, now_ms)

    text = f"from version {compared.version} to version {version}"
    return change, text + ", with the tables that it computed" * with_tables
