"""The lag of groups, as the list of groups shows it."""

from __future__ import annotations

from console.running import Browserless, eventually, running_console
from penstock import Admin, Consumer, NewTopic, OffsetAndMetadata, Producer, TopicPartition
from penstock.testing.broker import Broker


def test_records_that_were_deleted_are_not_lag(penstock_broker: Broker) -> None:
    """The list of groups and the page of a group show the same lag."""
    topic, group = penstock_broker.new_name("trimmed"), penstock_broker.new_name("slow")
    partition = TopicPartition(topic, 0)
    with Admin(penstock_broker.bootstrap) as admin:
        admin.create_topics([NewTopic(topic, 1)])
        with Producer(penstock_broker.bootstrap) as producer:
            for number in range(10):
                producer.send(topic, b"%d" % number)
        with Consumer(penstock_broker.bootstrap, topics=[topic], group_id=group) as consumer:
            consumer.commit({partition: OffsetAndMetadata(2)})
        admin.delete_records({partition: 7})
    with running_console(penstock_broker.bootstrap) as url:
        visitor = Browserless(url)
        assert visitor.log_in().status == 200

        def listed() -> int | None:
            rows = visitor.get("/api/groups").json["groups"]
            return next((row["lag"] for row in rows if row["group"] == group), None)

        # The lag is not known while the leader answers late.
        eventually(lambda: visitor.get(f"/api/group?name={group}").json["lag"] == 3)
        eventually(lambda: listed() == 3)
