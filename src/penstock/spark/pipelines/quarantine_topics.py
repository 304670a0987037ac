"""Checks that the topics of quarantines exist, before the flows of a pipeline run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Protocol

from penstock.client.errors import BrokerError
from penstock.spark.clients import open_admin
from penstock.spark.options import SinkOptions
from penstock.spark.pipelines.errors import PipelineError
from penstock.spark.pipelines.project import TOPICS_SETTING
from penstock.wire.errors import ErrorCode

if TYPE_CHECKING:
    from penstock.client.admin.operations import TopicInfo


class Describes(Protocol):
    """The method of an admin client that is needed."""

    def describe_topics(self, names: Sequence[str]) -> Mapping[str, TopicInfo | BrokerError]: ...


Opens = Callable[[SinkOptions], AbstractContextManager[Describes]]


class TopicCheck:
    """Asks the brokers once for each topic. A pipeline is defined again in every round."""

    def __init__(self, opens: Opens = open_admin) -> None:
        self._opens = opens
        self._found: set[tuple[str, str]] = set()

    def __call__(self, flow: str, options: SinkOptions) -> None:
        """Raises `PipelineError` if the topic cannot be used."""
        topic = options.topic or ""
        key = options.bootstrap_servers, topic
        if key in self._found:
            return
        with self._opens(options) as admin:
            found = admin.describe_topics([topic])[topic]
        if not isinstance(found, BrokerError):
            self._found.add(key)
            return
        if found.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            raise PipelineError(
                f"the topic {topic} for the quarantined rows of {flow} does not exist: create it "
                f"with `penstock topic create {topic}`, or add it to {TOPICS_SETTING} in the "
                "project file"
            )
        if found.code is ErrorCode.TOPIC_AUTHORIZATION_FAILED:
            raise PipelineError(
                f"this user may not see the topic {topic} for the quarantined rows of {flow}: "
                "grant Describe and Write with `penstock acl add --user USER --allow "
                f"describe,write topic:{topic}`"
            )
        raise PipelineError(f"the topic {topic} for the quarantined rows of {flow}: {found}")
