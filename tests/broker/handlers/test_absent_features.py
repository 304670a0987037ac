"""Requests for features that Penstock does not have are refused with Kafka's error codes."""

from __future__ import annotations

from broker.harness import BrokerHarness, with_harness, with_harness_of
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import (
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    ApiVersionsRequest,
    ApiVersionsResponse,
    CreateAclsRequest,
    CreateAclsResponse,
    DeleteAclsRequest,
    DeleteAclsResponse,
    DescribeAclsRequest,
    DescribeAclsResponse,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    GetTelemetrySubscriptionsRequest,
    GetTelemetrySubscriptionsResponse,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
    PushTelemetryRequest,
    PushTelemetryResponse,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)

ACL_VERSIONS = (1, 2, 3)


@with_harness
async def test_without_an_authorizer_access_lists_are_disabled(harness: BrokerHarness) -> None:
    """With SECURITY_DISABLED, MirrorMaker 2 stops asking."""
    for version in ACL_VERSIONS:
        described = await harness.ask(DescribeAclsRequest(), version, DescribeAclsResponse)
        assert (described.error_code, described.resources) == (ErrorCode.SECURITY_DISABLED, [])
        assert "authorizer" in (described.error_message or "")
        creation = CreateAclsRequest.Creation(2, "t", 3, "User:a", "*", 3, 3)
        request = CreateAclsRequest([creation, creation])
        created = await harness.ask(request, version, CreateAclsResponse)
        assert [each.error_code for each in created.results] == [ErrorCode.SECURITY_DISABLED] * 2
        deletion = DeleteAclsRequest([DeleteAclsRequest.Filter(2, None, 3)])
        deleted = await harness.ask(deletion, version, DeleteAclsResponse)
        (answer,) = deleted.filter_results
        assert (answer.error_code, answer.matching_acls) == (ErrorCode.SECURITY_DISABLED, [])


@with_harness_of(brokers=2)
async def test_replicas_cannot_be_moved_to_another_log_directory(harness: BrokerHarness) -> None:
    """A broker has one log directory. A move to the directory that already holds the replica
    succeeds.
    """
    await harness.create("orders", 2)
    dirs = await harness.ask(DescribeLogDirsRequest(None), 4, DescribeLogDirsResponse)
    root = dirs.results[0].log_dir
    indexes = [0, 1]
    here = next(index for index in indexes if harness.broker.replicas.get("orders", index))
    for version in (1, 2):
        for path, expected in (
            (root, {here: 0, 1 - here: ErrorCode.NOT_LEADER_OR_FOLLOWER}),
            ("/elsewhere", dict.fromkeys(indexes, ErrorCode.LOG_DIR_NOT_FOUND)),
        ):
            topic = AlterReplicaLogDirsRequest.Topic("orders", indexes)
            request = AlterReplicaLogDirsRequest([AlterReplicaLogDirsRequest.Dir(path, [topic])])
            moved = await harness.ask(request, version, AlterReplicaLogDirsResponse)
            (answer,) = moved.results
            assert {each.partition_index: each.error_code for each in answer.partitions} == expected
    topic = AlterReplicaLogDirsRequest.Topic("nowhere", [0])
    request = AlterReplicaLogDirsRequest([AlterReplicaLogDirsRequest.Dir(root, [topic])])
    moved = await harness.ask(request, 2, AlterReplicaLogDirsResponse)
    assert moved.results[0].partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@with_harness
async def test_feature_levels_cannot_be_changed(harness: BrokerHarness) -> None:
    """An update to the level that ApiVersions shows is accepted."""
    versions = await harness.ask(ApiVersionsRequest("client", "1"), 4, ApiVersionsResponse)
    (feature,) = versions.finalized_features
    for version in (0, 1, 2):
        for name, level, code in (
            (feature.name, feature.max_version_level, 0),
            (feature.name, 1, ErrorCode.INVALID_UPDATE_VERSION),
            (feature.name, 9, ErrorCode.INVALID_UPDATE_VERSION),
            (feature.name, -1, ErrorCode.INVALID_UPDATE_VERSION),
            ("no.such.feature", 1, ErrorCode.INVALID_UPDATE_VERSION),
        ):
            update = UpdateFeaturesRequest.FeatureUpdate(name, level)
            request = UpdateFeaturesRequest(feature_updates=[update])
            updated = await harness.ask(request, version, UpdateFeaturesResponse)
            assert updated.error_code == code
            assert (updated.error_message is None) == (code == 0)
            results = [(each.feature, each.error_code) for each in updated.results]
            assert results == ([(name, 0)] if code == 0 and version < 2 else [])


@with_harness
async def test_clients_are_not_asked_for_metrics(harness: BrokerHarness) -> None:
    """A client keeps the id that it is given. If it pushes metrics anyway, they are checked and
    dropped.
    """
    request = GetTelemetrySubscriptionsRequest(bytes(16))
    first = await harness.ask(request, 0, GetTelemetrySubscriptionsResponse)
    assert (first.error_code, first.requested_metrics) == (0, [])
    assert first.client_instance_id != bytes(16)
    assert (first.push_interval_ms, first.telemetry_max_bytes) == (300_000, 1 << 20)
    again = await harness.ask(
        GetTelemetrySubscriptionsRequest(first.client_instance_id),
        0,
        GetTelemetrySubscriptionsResponse,
    )
    assert again.client_instance_id == first.client_instance_id
    for client, subscription, metrics, code in (
        (first.client_instance_id, first.subscription_id, b"x", 0),
        (bytes(16), first.subscription_id, b"x", ErrorCode.INVALID_REQUEST),
        (first.client_instance_id, 77, b"x", ErrorCode.UNKNOWN_SUBSCRIPTION_ID),
        (
            first.client_instance_id,
            first.subscription_id,
            bytes((1 << 20) + 1),
            ErrorCode.TELEMETRY_TOO_LARGE,
        ),
    ):
        pushed = await harness.ask(
            PushTelemetryRequest(client, subscription, False, 1, metrics), 0, PushTelemetryResponse
        )
        assert pushed.error_code == code


@with_harness_of(brokers=2)
async def test_config_resources_are_listed_by_type(harness: BrokerHarness) -> None:
    await harness.create("orders")
    for types, expected in (
        ([], [("orders", 2), ("0", 4), ("1", 4), ("0", 8), ("1", 8)]),
        ([2, 32], [("orders", 2)]),
        ([4], [("0", 4), ("1", 4)]),
        ([16], []),
    ):
        listed = await harness.ask(
            ListConfigResourcesRequest(types), 1, ListConfigResourcesResponse
        )
        found = [(each.resource_name, each.resource_type) for each in listed.config_resources]
        assert (listed.error_code, found) == (0, expected)
    unknown = await harness.ask(ListConfigResourcesRequest([99]), 1, ListConfigResourcesResponse)
    assert unknown.error_code == ErrorCode.UNSUPPORTED_VERSION
    old = await harness.ask(ListConfigResourcesRequest(), 0, ListConfigResourcesResponse)
    assert (old.error_code, old.config_resources) == (0, [])
