"""A transactional producer of librdkafka, for tests that read its records with our client."""

from __future__ import annotations

from typing import Any

import confluent_kafka as ck

from compat.apache_kafka import ApacheKafka
from compat.clients.base import DEADLINE_S


def settings(kafka: ApacheKafka, **options: Any) -> dict[str, Any]:
    """Returns settings for confluent-kafka; underscores stand for dots."""
    given = {key.replace("_", "."): value for key, value in options.items()}
    return {"bootstrap.servers": kafka.bootstrap, **given}


class Transactional:
    """A producer of librdkafka that writes numbers."""

    def __init__(self, kafka: ApacheKafka, topic: str) -> None:
        self.topic = topic
        self.own = ck.Producer(settings(kafka, transactional_id=kafka.new_name("txn")))
        self.own.init_transactions(DEADLINE_S)

    def write(self, *numbers: int) -> None:
        for number in numbers:
            self.own.produce(self.topic, b"%d" % number, partition=0)
        assert self.own.flush(DEADLINE_S) == 0
