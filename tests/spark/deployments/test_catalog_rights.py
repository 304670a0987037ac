"""Tests what users without rights see of deployed pipelines, with a secured broker."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from console.secured import Secured, secured_cluster
from penstock.security.acls import (
    AclBinding,
    AclOperation,
    PatternType,
    PermissionType,
    ResourceType,
)
from penstock.spark.deployments.catalog import Catalog
from penstock.spark.deployments.catalog_errors import AccessRefused
from penstock.spark.deployments.change_plan import NewVersion
from penstock.spark.deployments.model import Deployment, Status

PASSWORD = "tea-4711-milk"
RIGHTS = {
    ResourceType.TOPIC: (AclOperation.READ, AclOperation.DESCRIBE, AclOperation.WRITE),
    ResourceType.TRANSACTIONAL_ID: (AclOperation.WRITE, AclOperation.DESCRIBE),
}
"""What docs/PIPELINES.md says that a user needs who deploys."""
PLAN = NewVersion("views", "project", "spark-pipeline.yml", b"files")


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    folder: Path = tmp_path_factory.mktemp("secured")
    with secured_cluster(folder) as cluster:
        with cluster.admin() as admin:
            for user in ("stranger", "reader", "deployer"):
                admin.upsert_scram_user(user, PASSWORD)
            admin.create_acls(
                [
                    _allow("reader", operation)
                    for operation in (AclOperation.READ, AclOperation.DESCRIBE)
                ]
            )
            admin.create_acls(
                [
                    _allow("deployer", operation, kind)
                    for kind, operations in RIGHTS.items()
                    for operation in operations
                ]
            )
        yield cluster


def _allow(
    user: str, operation: AclOperation, kind: ResourceType = ResourceType.TOPIC
) -> AclBinding:
    return AclBinding(
        kind,
        PatternType.PREFIXED,
        "__penstock_pipeline" if kind == ResourceType.TOPIC else "penstock-pipeline-",
        f"User:{user}",
        "*",
        operation,
        PermissionType.ALLOW,
    )


def catalog(secured: Secured, user: str) -> Catalog:
    login: dict[str, Any] = secured.login(user, None if user == "admin" else PASSWORD)
    return Catalog(secured.bootstrap, **login)


async def deploy_as_admin(secured: Secured) -> None:
    async with catalog(secured, "admin") as mine:
        await mine.deploy(PLAN)
        assert mine.deployments["views"].changed_by == "admin"


def test_a_stranger_may_not_look(secured: Secured) -> None:
    async def work() -> None:
        await deploy_as_admin(secured)
        with pytest.raises(AccessRefused, match="Read and Describe on the topics") as refused:
            async with catalog(secured, "stranger") as mine:
                await mine.caught_up()
        assert "penstock acl add" in str(refused.value)

    asyncio.run(work())


def test_a_reader_may_look_but_not_change(secured: Secured) -> None:
    def stopped(old: Deployment) -> Deployment:
        return replace(old, wanted="STOPPED")

    async def work() -> None:
        await deploy_as_admin(secured)
        async with catalog(secured, "reader") as mine:
            await mine.caught_up()
            before = mine.deployments["views"]
            newest = mine.versions_of("views")[0]
            assert await mine.archive(newest) == b"files"
            with pytest.raises(AccessRefused, match="transactional id penstock-pipeline-views"):
                await mine.change("views", stopped, "stopped", "")
            with pytest.raises(AccessRefused, match="Write on the topics __penstock_pipelines"):
                await mine.deploy(PLAN)
            with pytest.raises(AccessRefused, match=r"Write on the topic .*_status"):
                await mine.report(Status("views", "RUNNING", 1, 1))
            await mine.caught_up()
            assert mine.deployments["views"] == before

    asyncio.run(work())


def test_the_rights_of_the_documentation_are_enough_to_deploy(secured: Secured) -> None:
    async def work() -> None:
        await deploy_as_admin(secured)
        async with catalog(secured, "deployer") as mine:
            made = await mine.deploy(PLAN)
            assert made.changed_by == "deployer"
            assert [event.by async for event in mine.history("views")][-1] == "deployer"
            await mine.delete("views")
            assert "views" not in mine.deployments

    asyncio.run(work())
