"""Errors of the catalog of deployed pipelines, and the rights that its calls need."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from penstock.client.errors import (
    BrokerError,
    ClientError,
    Fenced,
    TopicNotFound,
    TransactionAborted,
)
from penstock.spark.deployments import topics
from penstock.spark.pipelines.errors import PipelineError
from penstock.wire.errors import ErrorCode

_REFUSED: Final = (
    ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
)
_FENCED: Final = (
    ErrorCode.PRODUCER_FENCED,
    ErrorCode.INVALID_PRODUCER_EPOCH,
    ErrorCode.INVALID_PRODUCER_ID_MAPPING,
    ErrorCode.INVALID_TXN_STATE,
    ErrorCode.TRANSACTION_ABORTABLE,
)
LOOKING: Final = f"Read and Describe on the topics {topics.PREFIX}*"
"""The rights that are needed to look at deployments."""


class NoSuchDeployment(PipelineError):
    """There is no deployment of this name."""

    def __init__(self, name: str) -> None:
        super().__init__(f"there is no deployment {name}: see penstock pipeline list")


class ChangeConflict(PipelineError):
    """Someone else changed the deployment at the same time, and this change was not made."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"someone else changed {name} at the same time: look at it with "
            f"penstock pipeline status {name}, then try again"
        )


class AccessRefused(PipelineError):
    """The user lacks a right."""


class ArchiveDamaged(PipelineError):
    """The files of a version are not in the cluster as they were uploaded."""


@contextmanager
def rights_named(doing: str, needed: str) -> Iterator[None]:
    """Turns the refusal of a broker into an error that names the rights that are needed."""
    try:
        yield
    except TransactionAborted as error:
        if is_refusal(error.__cause__):
            raise refusal(doing, needed, error.__cause__) from error
        raise
    except BrokerError as error:
        if is_refusal(error):
            raise refusal(doing, needed, error) from error
        raise


def is_refusal(error: object) -> bool:
    return isinstance(error, BrokerError) and error.code in _REFUSED


def refusal(doing: str, needed: str, error: BaseException | None) -> AccessRefused:
    subject = getattr(error, "subject", "")
    where = f" ({subject} was refused)" if subject else ""
    return AccessRefused(
        f"this user may not {doing}: it needs {needed}{where}; "
        "an administrator grants rights with penstock acl add"
    )


def is_conflict(error: ClientError) -> bool:
    """Whether another client has taken over the transactional id."""
    if isinstance(error, Fenced):
        return True
    if isinstance(error, TransactionAborted):
        cause = error.__cause__
        return not isinstance(cause, ClientError) or is_conflict(cause)
    return isinstance(error, BrokerError) and error.code in _FENCED


def changing(name: str) -> str:
    """Returns the rights that are needed to change a deployment."""
    return (
        f"Write on the topics {topics.DEFINITIONS}, {topics.FILES} and {topics.HISTORY}, "
        f"and Write on the transactional id {topics.change_id(name)}"
    )


def is_missing(error: object) -> bool:
    return isinstance(error, TopicNotFound) or (
        isinstance(error, BrokerError) and error.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    )
