"""Removes the statuses of workers that were killed and could not remove their own."""

from __future__ import annotations

import logging

from penstock.spark.deployments.catalog import Catalog
from penstock.spark.deployments.logged_errors import WRITE_ERRORS

_log = logging.getLogger(__name__)


async def forget_gone(catalog: Catalog, own: str) -> None:
    """Removes the statuses of workers that have been gone for long. One that returns after all
    reports again. `own` is the id of this worker, whose clock may have been set."""
    gone = [worker.id for worker in catalog.gone_workers() if worker.id != own]
    try:
        for worker in gone:
            await catalog.forget_worker(worker)
    except WRITE_ERRORS as error:
        _log.warning("cannot remove the status of %s, which is gone: %s", worker, error)
