"""Compares our assignors with Java's, on random groups.

Range and round robin must assign exactly the same partitions as Java's. The sticky assignors may
choose differently, but every partition must have one owner, the balance must be at least as good as
Java's, and with equal subscriptions no more partitions may move.
"""

from __future__ import annotations

import base64
import random
import subprocess
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import pytest

from compat.java_build import VERSIONS, compiled
from compat.toolchain import RUN_S
from penstock.client.membership.assignors import (
    COOPERATIVE_STICKY,
    RANGE,
    ROUNDROBIN,
    STICKY,
    Assignment,
    Assignor,
    Memory,
    Peer,
)
from penstock.client.membership.assignors.sticky import decode_memory
from penstock.client.membership.protocol import (
    Subscription,
    decode_subscription,
    encode_subscription,
)
from penstock.testing.slowness import patient
from penstock.topic_partition import TopicPartition

GROUPS = 400
Given = Mapping[str, frozenset[TopicPartition]]


@dataclass(frozen=True)
class Group:
    counts: Mapping[str, int]
    members: Sequence[Peer]

    @property
    def is_equal(self) -> bool:
        return len({frozenset(peer.subscription.topics) for peer in self.members}) == 1


def random_groups(seed: int) -> Iterator[Group]:
    """Yields groups with instance ids, topics that do not exist, old and new claims."""
    dice = random.Random(seed)
    for _ in range(GROUPS):
        counts = {f"t{n}": dice.randint(1, 9) for n in range(dice.randint(1, 6))}
        wishes = [*counts, "missing"]
        equal = dice.random() < 0.5
        common = dice.sample(wishes, dice.randint(1, len(wishes)))
        # Valid claims: disjoint within a generation, as assignments are.
        free = [TopicPartition(topic, n) for topic, count in counts.items() for n in range(count)]
        dice.shuffle(free)
        members = []
        for number in range(dice.randint(1, 8)):
            topics = common if equal else dice.sample(wishes, dice.randint(1, len(wishes)))
            held: list[TopicPartition] = []
            generation = -1
            if dice.random() < 0.7:
                generation = 5
                held = [free.pop() for _ in range(min(len(free), dice.randint(0, 6)))]
                held = sorted(
                    topic_partition for topic_partition in held if topic_partition.topic in topics
                )
            members.append(
                Peer(
                    f"m{dice.randint(0, 99):02}-{number}",
                    Subscription(
                        tuple(sorted(topics)),
                        tuple(held),
                        generation,
                        STICKY.user_data(Memory(tuple(held), generation)),
                    ),
                    f"i{dice.randint(0, 99):02}-{number}" if dice.random() < 0.3 else None,
                )
            )
        yield Group(counts, members)


def described(group: Group) -> str:
    lines = [f"topic {topic} {count}" for topic, count in group.counts.items()]
    for peer in group.members:
        wants = peer.subscription
        held = ",".join(
            f"{topic_partition.topic}:{topic_partition.partition}"
            for topic_partition in wants.owned
        )
        words = [peer.member_id, peer.instance_id or "-", ",".join(wants.topics)]
        lines.append(" ".join(["member", *words, str(wants.generation), held or "-"]))
    return "\n".join([*lines, "assign", ""])


@dataclass(frozen=True)
class Answer:
    given: dict[str, dict[str, frozenset[TopicPartition]]]
    """By assignor and member."""
    sent: dict[str, bytes]
    """By member: its subscription for the sticky assignor, as Java encodes it."""


def ask_java(class_path: str, groups: Sequence[Group]) -> list[Answer]:
    command = ["java", "-XX:TieredStopAtLevel=1", "-Xmx256m", "-cp", class_path, "Assignors"]
    result = subprocess.run(
        command,
        input="".join(map(described, groups)),
        capture_output=True,
        text=True,
        check=False,
        timeout=patient(RUN_S),
    )
    assert result.returncode == 0, result.stderr[-3000:]
    answers = []
    now = Answer({}, {})
    for line in result.stdout.splitlines():
        match line.split():
            case ["end"]:
                answers.append(now)
                now = Answer({}, {})
            case ["bytes", member, data]:
                now.sent[member] = base64.b64decode(data)
            case [assignor, member, topic_partitions]:
                now.given.setdefault(assignor, {})[member] = read_topic_partitions(topic_partitions)
    assert len(answers) == len(groups), result.stdout[-3000:]
    return answers


def read_topic_partitions(text: str) -> frozenset[TopicPartition]:
    pairs = [
        topic_partition.split(":") for topic_partition in text.split(",") if topic_partition != "-"
    ]
    return frozenset(TopicPartition(topic, int(partition)) for topic, partition in pairs)


@pytest.fixture(scope="module", params=VERSIONS)
def played(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> list[tuple[Group, Answer]]:
    groups = list(random_groups(seed=11))
    class_path = compiled(request.param, tmp_path_factory.mktemp("assignors"), "Assignors")
    return list(zip(groups, ask_java(class_path, groups), strict=True))


def frozen(assignment: Assignment) -> dict[str, frozenset[TopicPartition]]:
    return {member: frozenset(topic_partitions) for member, topic_partitions in assignment.items()}


@pytest.mark.parametrize("assignor", [RANGE, ROUNDROBIN], ids=lambda assignor: assignor.name)
def test_each_member_gets_the_same_partitions_as_from_java(
    played: list[tuple[Group, Answer]], assignor: Assignor
) -> None:
    """Range and round robin are deterministic, so the assignments are equal."""
    for group, java in played:
        ours = frozen(assignor.assign(group.counts, group.members))
        assert ours == java.given[assignor.name], described(group)


def squares(given: Given) -> int:
    """Returns a measure of the balance; smaller is better."""
    return sum(len(topic_partitions) ** 2 for topic_partitions in given.values())


def kept(group: Group, given: Given) -> int:
    return sum(
        len(given[peer.member_id].intersection(peer.subscription.owned)) for peer in group.members
    )


def test_sticky_is_as_balanced_as_javas_and_moves_no_more_partitions(
    played: list[tuple[Group, Answer]],
) -> None:
    """A better balance may need moves; with the same balance, ours moves no more than Java's."""
    for group, java in played:
        ours, theirs = frozen(STICKY.assign(group.counts, group.members)), java.given["sticky"]
        assert Counter(
            p for topic_partitions in ours.values() for p in topic_partitions
        ) == Counter(p for topic_partitions in theirs.values() for p in topic_partitions)
        assert squares(ours) <= squares(theirs), described(group)
        if group.is_equal:
            assert squares(ours) == squares(theirs), described(group)
            assert kept(group, ours) >= kept(group, theirs), described(group)


def test_cooperative_sticky_revokes_no_more_than_javas(played: list[tuple[Group, Answer]]) -> None:
    """In the first step no partition moves directly between members; ours keeps no fewer."""
    for group, java in played:
        ours = frozen(COOPERATIVE_STICKY.assign(group.counts, group.members))
        theirs = java.given["cooperative-sticky"]
        holders = {
            topic_partition: peer.member_id
            for peer in group.members
            for topic_partition in peer.subscription.owned
        }
        for given in (ours, theirs):
            for member, topic_partitions in given.items():
                assert all(
                    holders.get(topic_partition, member) == member
                    for topic_partition in topic_partitions
                )
        if group.is_equal:
            assert kept(group, ours) >= kept(group, theirs), described(group)
            assert sum(map(len, ours.values())) >= sum(map(len, theirs.values()))


def test_subscriptions_are_encoded_as_by_java(
    played: list[tuple[Group, Answer]],
) -> None:
    """Equal byte for byte, except for the order of topics in the sticky assignor's user data, which
    is that of a Java hash map. Java's subscriptions can be decoded."""
    for group, java in played:
        for peer in group.members:
            sent = java.sent[peer.member_id]
            read = decode_subscription(sent)
            assert encode_subscription(read) == sent, described(group)
            assert replace(read, user_data=None) == replace(peer.subscription, user_data=None)
            theirs, ours = decode_memory(read.user_data), decode_memory(peer.subscription.user_data)
            assert (set(theirs.topic_partitions), theirs.generation) == (
                set(ours.topic_partitions),
                ours.generation,
            )
            assert len(encode_subscription(peer.subscription)) == len(sent), described(group)
