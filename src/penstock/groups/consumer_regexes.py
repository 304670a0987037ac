"""When the regular expressions of a consumer group are resolved, and what follows.

All expressions of a group are resolved together: when one is new, when topics were created, and
from time to time. It happens at a member's heartbeat and with that member's rights. The matching
itself is not done here, because it takes long: `ResolveRegexes` asks for it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from penstock.coordination.batches import record_bytes
from penstock.coordination.effects import Now
from penstock.groups.consumer.group import Asked, ConsumerGroup, Turn
from penstock.groups.consumer.records import RegexEntry, ResolvedRegex, record_of
from penstock.groups.consumer_targets import raise_epoch
from penstock.groups.consumer_turns import submit
from penstock.groups.effects import RegexOutgrown, ResolveRegexes
from penstock.groups.shard_state import ShardState


def resolve_if_due(
    shard: ShardState, group: ConsumerGroup, may_describe: Callable[[str], bool], now: Now
) -> None:
    if not group.regex_users or group.is_resolving:
        return
    regexes = sorted(group.regex_users.keys() - group.unusable_regexes)
    if not regexes:
        return
    config, since_ms = shard.consumers.config, None
    if group.resolved_ms is not None:
        since_ms = now.ticks_ms - group.resolved_ms
    if since_ms is not None and since_ms < config.regex_pause_ms:
        return
    is_old = since_ms is not None and since_ms >= config.regex_refresh_interval_ms
    is_new = any(regex not in group.stored.regexes for regex in regexes)
    if is_new or is_old or group.topics_were_created:
        group.is_resolving = True
        group.resolved_ms = now.ticks_ms
        group.topics_were_created = False
        shard.effects.add(ResolveRegexes(group.group_id, tuple(regexes), may_describe))


def on_resolved(
    shard: ShardState, group_id: str, found: Mapping[str, frozenset[str] | None], now: Now
) -> None:
    """Stores the topics that match. An expression that took too long has None.

    One that matches more topics than fit into half a batch is treated alike: the log would refuse
    its record, and with it what other members asked for.

    If it is new, its members are refused. If it has worked before, it keeps the topics of the last
    time: refusing would end all consumers of the group because of topics that others create.
    """
    group = shard.consumer(group_id)
    if group is None:
        return
    group.is_resolving = False

    def decide(turn: Turn) -> None:
        is_changed = False
        for regex in sorted(found.keys() & turn.group.regex_users.keys()):
            topics = found[regex]
            known = turn.group.stored.regexes.get(regex)
            is_same = known is not None and known.topics == topics
            if topics is None or not (is_same or _fits(shard, group_id, regex, topics)):
                _on_outgrown(shard, turn.group, regex)
                continue
            turn.group.outgrown_regexes.discard(regex)
            if not is_same:
                is_changed = True
                resolved = ResolvedRegex(topics, shard.consumers.topics.version(), turn.now.wall_ms)
                turn.write(RegexEntry(group_id, regex, resolved))
        if is_changed:
            raise_epoch(shard, turn, is_changed=True)

    submit(shard, group, Asked(decide), now)


def _fits(shard: ShardState, group_id: str, regex: str, topics: frozenset[str]) -> bool:
    """Returns whether the record of an expression fits into half a batch."""
    record = record_of(RegexEntry(group_id, regex, ResolvedRegex(topics, 0, 0)))
    return 2 * record_bytes(record) <= shard.batch_bytes_max()


def _on_outgrown(shard: ShardState, group: ConsumerGroup, regex: str) -> None:
    shard.counters.regexes_outgrown += 1
    if regex not in group.stored.regexes:
        group.unusable_regexes.add(regex)
    elif regex not in group.outgrown_regexes:
        group.outgrown_regexes.add(regex)
        shard.effects.add(RegexOutgrown(group.group_id, regex))
