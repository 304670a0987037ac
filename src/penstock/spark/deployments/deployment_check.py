"""What a supervisor asks about a deployment before it runs it. Pure."""

from __future__ import annotations

from penstock.spark.deployments import schedule as times
from penstock.spark.deployments.model import Deployment, Version


def why_not_runnable(deployment: Deployment, version: Version | None) -> str:
    """Returns why a deployment cannot be run before someone changes it; empty if it can."""
    try:
        times.check(deployment.schedule)
    except times.ScheduleInvalid as invalid:
        return str(invalid)
    if version is None:
        return (
            f"version {deployment.version} does not exist: deploy the pipeline again, or roll it "
            "back"
        )
    return ""


def known_good(version: int, deployment: Deployment) -> int:
    """Returns the version that worked last; 0 if it is one of a deployment of the same name that
    was deleted, which is not gone back to."""
    return version if version >= deployment.first_version else 0
