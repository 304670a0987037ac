"""The pytest fixtures of `penstock.testing`, registered by the entry point `pytest11`.

pytest imports this module in every run, so it imports nothing large. A run that uses none of the
fixtures loads almost nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import pytest

if TYPE_CHECKING:
    from penstock.testing.broker import Broker
    from penstock.testing.faults import Faults
    from penstock.testing.pipelines import PipelineTest


class TopicFactory(Protocol):
    """`penstock_topic(partitions=3, configs={"cleanup.policy": "compact"})` returns a name."""

    def __call__(
        self,
        partitions: int = 1,
        *,
        name: str | None = None,
        configs: Mapping[str, str] | None = None,
    ) -> str: ...


@pytest.fixture(scope="session")
def penstock_broker_settings() -> Mapping[str, str]:
    """Settings of `penstock_broker`. Override this fixture to change them."""
    return {}


@pytest.fixture(scope="session")
def penstock_broker(penstock_broker_settings: Mapping[str, str]) -> Iterator[Broker]:
    """One real broker for the whole test run; `penstock_broker.bootstrap` is its address."""
    from penstock.testing.broker import Broker  # noqa: PLC0415 -- loaded only if used

    with Broker(penstock_broker_settings) as broker:
        yield broker


@pytest.fixture
def penstock_topic(penstock_broker: Broker) -> TopicFactory:
    """Creates topics, each with a unique name."""
    return penstock_broker.new_topic


@pytest.fixture
def penstock_faults(penstock_broker: Broker) -> Iterator[Faults]:
    """A proxy in front of `penstock_broker` that injects faults."""
    from penstock.testing.faults import Faults  # noqa: PLC0415 -- loaded only if used

    with Faults(penstock_broker.bootstrap) as faults:
        yield faults


@pytest.fixture(scope="session")
def penstock_spark() -> Iterator[Any]:
    """One Spark session for the whole test run. Override this fixture to use your own."""
    from penstock.spark.pipelines.errors import PipelineError  # noqa: PLC0415 -- loaded only if used
    from penstock.testing.pipelines.session import shared_spark  # noqa: PLC0415 -- only if used

    running = shared_spark()
    try:
        session = running.__enter__()
    except PipelineError as error:
        pytest.fail(str(error), pytrace=False)
    try:
        yield session
    finally:
        running.__exit__(None, None, None)


@pytest.fixture
def penstock_pipeline_project(request: pytest.FixtureRequest) -> Path:
    """A folder in the project of `penstock_pipeline`. Override this fixture if the tests are not
    in their project."""
    return Path(request.path).parent


@pytest.fixture
def penstock_pipeline(
    penstock_pipeline_project: Path, penstock_spark: Any
) -> Iterator[PipelineTest]:
    """The pipeline of the project that the test is in, with rows instead of topics."""
    from penstock.testing.pipelines import PipelineTest  # noqa: PLC0415 -- loaded only if used

    with PipelineTest(penstock_pipeline_project, penstock_spark) as pipeline:
        yield pipeline
