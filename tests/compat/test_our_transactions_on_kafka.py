"""Our client's transactions on a real Apache Kafka, with transaction.version 2 and without it.

The client's own tests of transactions run here again, on both.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from client.blocking import test_exactly_once as sync_copies
from client.blocking import test_transactions as sync_transactions
from client.producing import test_transactions as transactions
from compat.apache_kafka import ApacheKafka
from compat.shared_client_tests import Chosen, shown
from penstock import aio
from penstock.client.producing.transactions import FEATURE, LEVEL

CHOSEN: list[Chosen] = [
    transactions.test_a_block_is_one_transaction,
    transactions.test_many_transactions_over_many_partitions,
    transactions.test_a_newer_producer_with_the_same_id_fences_the_older,
    transactions.test_offsets_are_committed_with_the_transaction,
    transactions.test_an_undelivered_record_aborts_its_transaction,
    transactions.test_closing_a_producer_aborts_its_open_transaction,
    sync_transactions.test_threads_share_one_transaction,
    sync_transactions.test_offsets_are_committed_with_the_transaction,
    sync_copies.test_input_and_output_are_committed_together,
]


@pytest.fixture(scope="module", params=[0, LEVEL], ids=lambda level: f"version {level}")
def kafka(request: pytest.FixtureRequest) -> Iterator[ApacheKafka]:
    with ApacheKafka(features={FEATURE: request.param}) as started:
        yield started


def test_the_client_uses_the_transaction_version_of_the_cluster(kafka: ApacheKafka) -> None:
    """The client chooses by the features that the brokers report."""

    async def is_older() -> bool:
        async with aio.Producer(kafka.bootstrap, transactional_id="which-way") as producer:
            assert producer._core.transactions is not None
            return producer._core.transactions.is_older

    assert asyncio.run(is_older()) == (f"{FEATURE}={LEVEL}" not in kafka.features)


@pytest.mark.parametrize("chosen", CHOSEN, ids=shown)
def test_a_selected_test_of_the_client_passes_on_kafka(kafka: ApacheKafka, chosen: Chosen) -> None:
    """The docstring of the selected test says what it checks."""
    chosen(kafka)
