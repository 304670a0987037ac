"""Broker settings that Kafka 4.3 knows, and that have no effect in Penstock or are for listeners.

Tools set and delete them: `kafka-reassign-partitions --verify` deletes the throttle of moves
between directories, and configuration management sends complete lists. So they are accepted and
stored, shown if they are set or requested by name, and described as having no effect. A setting of
a listener (prefixed with `listener.name.NAME.`) is treated as the setting itself.

As in Kafka, only the dynamic ones can be changed while a broker runs. Those that are marked with
`listener` are used by the listeners of a broker (`security.listener_security`). They come from its
config file only. Certificates are read again while a broker runs, from the same files.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Final

from penstock.metadata.config_types import ConfigType, Definition

_OF_LISTENER: Final = re.compile(
    r"listener\.name\.[^.]+\.(?:[a-z0-9-]+\.(?=sasl\.|connections\.max\.reauth\.))?(.+)"
)
"""A listener's own setting, or the setting of one SASL mechanism on it."""

_TABLE: Final = """
add.partitions.to.txn.retry.backoff.max.ms  int
add.partitions.to.txn.retry.backoff.ms  int
alter.config.policy.class.name  class
alter.log.dirs.replication.quota.window.num  int
alter.log.dirs.replication.quota.window.size.seconds  int
background.threads  int  dynamic
client.quota.callback.class  class
config.providers  list  dynamic
connection.failed.authentication.delay.ms  int  listener
connections.max.reauth.ms  long  listener
controller.listener.names  list
controller.performance.always.log.threshold.ms  long
controller.performance.sample.period.ms  long
controller.quorum.append.linger.ms  int
controller.quorum.auto.join.enable  boolean
controller.quorum.bootstrap.servers  list
controller.quorum.election.backoff.max.ms  int
controller.quorum.election.timeout.ms  int
controller.quorum.fetch.max.bytes  int
controller.quorum.fetch.snapshot.max.bytes  int
controller.quorum.fetch.timeout.ms  int
controller.quorum.request.timeout.ms  int
controller.quorum.retry.backoff.ms  int
controller.quorum.voters  list
controller.quota.window.num  int
controller.quota.window.size.seconds  int
controller.socket.timeout.ms  int
create.topic.policy.class.name  class
delete.records.purgatory.purge.interval.requests  int
early.start.listeners  list
fetch.purgatory.purge.interval.requests  int
follower.fetch.last.tiered.offset.enable  boolean  dynamic
group.coordinator.append.linger.ms  int
group.coordinator.background.threads  int
group.coordinator.cached.buffer.max.bytes  int  dynamic
group.coordinator.threads  int
group.share.assignors  list
group.share.max.assignment.interval.ms  int
group.share.max.delivery.count.limit  int
group.share.max.heartbeat.interval.ms  int
group.share.max.partition.max.record.locks  int
group.share.max.record.lock.duration.ms  int
group.share.max.session.timeout.ms  int
group.share.min.assignment.interval.ms  int
group.share.min.delivery.count.limit  int
group.share.min.heartbeat.interval.ms  int
group.share.min.partition.max.record.locks  int
group.share.min.record.lock.duration.ms  int
group.share.min.session.timeout.ms  int
group.share.persister.class.name  string
group.streams.assignment.interval.ms  int  dynamic
group.streams.heartbeat.interval.ms  int
group.streams.initial.rebalance.delay.ms  int
group.streams.max.assignment.interval.ms  int
group.streams.max.heartbeat.interval.ms  int
group.streams.max.session.timeout.ms  int
group.streams.max.size  int
group.streams.max.standby.replicas  int
group.streams.min.assignment.interval.ms  int
group.streams.min.heartbeat.interval.ms  int
group.streams.min.session.timeout.ms  int
group.streams.num.standby.replicas  int
group.streams.session.timeout.ms  int
initial.broker.registration.timeout.ms  int
inter.broker.listener.name  string  listener
internal.metadata.delete.delay.millis  long
internal.metadata.log.segment.bytes  int
internal.metadata.max.batch.size.in.bytes  int
kafka.metrics.polling.interval.secs  int
kafka.metrics.reporters  list
listener.security.protocol.map  string  listener
log.cleaner.io.buffer.load.factor  double  dynamic
log.cleaner.io.buffer.size  int  dynamic
log.cleaner.io.max.bytes.per.second  double  dynamic
log.cleaner.threads  int  dynamic
log.dir.failure.timeout.ms  long
log.flush.offset.checkpoint.interval.ms  int
log.flush.scheduler.interval.ms  long
log.flush.start.offset.checkpoint.interval.ms  int
log.initial.task.delay.ms  long
max.request.partition.size.limit  int
metadata.log.dir  string
metadata.log.max.record.bytes.between.snapshots  long
metadata.log.max.snapshot.interval.ms  long
metadata.log.segment.bytes  int
metadata.log.segment.ms  long
metadata.max.idle.interval.ms  int
metadata.max.retention.bytes  long
metadata.max.retention.ms  long
metric.reporters  list  dynamic
metrics.num.samples  int
metrics.recording.level  string
metrics.sample.window.ms  long
num.io.threads  int  dynamic
num.network.threads  int  dynamic
num.recovery.threads.per.data.dir  int  dynamic
num.replica.alter.log.dirs.threads  int
num.replica.fetchers  int  dynamic
offsets.load.buffer.size  int
principal.builder.class  class  dynamic
process.roles  list
producer.id.expiration.check.interval.ms  int
producer.purgatory.purge.interval.requests  int
queued.max.request.bytes  long
queued.max.requests  int
quota.window.num  int
quota.window.size.seconds  int
remote.fetch.max.wait.ms  int  dynamic
remote.list.offsets.request.timeout.ms  long  dynamic
remote.log.index.file.cache.total.size.bytes  long  dynamic
remote.log.index.file.cache.ttl.ms  long
remote.log.manager.copier.thread.pool.size  int  dynamic
remote.log.manager.copy.max.bytes.per.second  long  dynamic
remote.log.manager.copy.quota.window.num  int
remote.log.manager.copy.quota.window.size.seconds  int
remote.log.manager.expiration.thread.pool.size  int  dynamic
remote.log.manager.fetch.max.bytes.per.second  long  dynamic
remote.log.manager.fetch.quota.window.num  int
remote.log.manager.fetch.quota.window.size.seconds  int
remote.log.manager.follower.thread.pool.size  int  dynamic
remote.log.manager.task.interval.ms  long
remote.log.manager.task.retry.backoff.max.ms  long
remote.log.manager.task.retry.backoff.ms  long
remote.log.manager.task.retry.jitter  double
remote.log.manager.thread.pool.size  int
remote.log.metadata.custom.metadata.max.bytes  int
remote.log.metadata.manager.class.name  string
remote.log.metadata.manager.class.path  string
remote.log.metadata.manager.impl.prefix  string
remote.log.metadata.manager.listener.name  string
remote.log.reader.max.pending.tasks  int
remote.log.reader.threads  int  dynamic
remote.log.storage.manager.class.name  string
remote.log.storage.manager.class.path  string
remote.log.storage.manager.impl.prefix  string
remote.log.storage.system.enable  boolean
replica.alter.log.dirs.io.max.bytes.per.second  long  dynamic
replica.selector.class  string
replica.socket.receive.buffer.bytes  int
replication.quota.window.num  int
replication.quota.window.size.seconds  int
request.timeout.ms  int
sasl.client.callback.handler.class  class
sasl.enabled.mechanisms  list  listener
sasl.jaas.config  password  listener
sasl.kerberos.kinit.cmd  string  dynamic
sasl.kerberos.min.time.before.relogin  long  dynamic
sasl.kerberos.principal.to.local.rules  list  dynamic
sasl.kerberos.service.name  string  dynamic
sasl.kerberos.ticket.renew.jitter  double  dynamic
sasl.kerberos.ticket.renew.window.factor  double  dynamic
sasl.login.callback.handler.class  class
sasl.login.class  class
sasl.login.connect.timeout.ms  int
sasl.login.read.timeout.ms  int
sasl.login.refresh.buffer.seconds  short  dynamic
sasl.login.refresh.min.period.seconds  short  dynamic
sasl.login.refresh.window.factor  double  dynamic
sasl.login.refresh.window.jitter  double  dynamic
sasl.login.retry.backoff.max.ms  long
sasl.login.retry.backoff.ms  long
sasl.mechanism.controller.protocol  string
sasl.mechanism.inter.broker.protocol  string  listener
sasl.oauthbearer.assertion.algorithm  string
sasl.oauthbearer.assertion.claim.aud  string
sasl.oauthbearer.assertion.claim.exp.seconds  int
sasl.oauthbearer.assertion.claim.iss  string
sasl.oauthbearer.assertion.claim.jti.include  boolean
sasl.oauthbearer.assertion.claim.nbf.seconds  int
sasl.oauthbearer.assertion.claim.sub  string
sasl.oauthbearer.assertion.file  string
sasl.oauthbearer.assertion.private.key.file  string
sasl.oauthbearer.assertion.private.key.passphrase  password
sasl.oauthbearer.assertion.template.file  string
sasl.oauthbearer.client.credentials.client.id  string
sasl.oauthbearer.client.credentials.client.secret  password
sasl.oauthbearer.clock.skew.seconds  int  listener
sasl.oauthbearer.expected.audience  list  listener
sasl.oauthbearer.expected.issuer  string  listener
sasl.oauthbearer.jwks.endpoint.refresh.ms  long
sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms  long
sasl.oauthbearer.jwks.endpoint.retry.backoff.ms  long
sasl.oauthbearer.jwks.endpoint.url  string  listener
sasl.oauthbearer.jwt.retriever.class  class
sasl.oauthbearer.jwt.validator.class  class
sasl.oauthbearer.scope  string
sasl.oauthbearer.scope.claim.name  string
sasl.oauthbearer.sub.claim.name  string  listener
sasl.oauthbearer.token.endpoint.url  string
sasl.server.callback.handler.class  class
sasl.server.max.receive.size  int  listener
security.inter.broker.protocol  string  listener
security.providers  string
server.max.startup.time.ms  long
share.coordinator.append.linger.ms  int
share.coordinator.cached.buffer.max.bytes  int  dynamic
share.coordinator.cold.partition.snapshot.interval.ms  int
share.coordinator.load.buffer.size  int
share.coordinator.state.topic.compression.codec  int
share.coordinator.state.topic.prune.interval.ms  int
share.coordinator.threads  int
share.fetch.purgatory.purge.interval.requests  int
socket.connection.setup.timeout.max.ms  long
socket.connection.setup.timeout.ms  long
socket.listen.backlog.size  int
socket.receive.buffer.bytes  int
socket.send.buffer.bytes  int
ssl.allow.dn.changes  boolean  listener
ssl.allow.san.changes  boolean  listener
ssl.cipher.suites  list  listener
ssl.client.auth  string  listener
ssl.enabled.protocols  list  listener
ssl.endpoint.identification.algorithm  string  listener
ssl.engine.factory.class  class  dynamic
ssl.key.password  password  listener
ssl.keymanager.algorithm  string  dynamic
ssl.keystore.certificate.chain  password  listener
ssl.keystore.key  password  listener
ssl.keystore.location  string  listener
ssl.keystore.password  password  listener
ssl.keystore.type  string  listener
ssl.principal.mapping.rules  string  listener
ssl.protocol  string  dynamic
ssl.provider  string  dynamic
ssl.secure.random.implementation  string  dynamic
ssl.trustmanager.algorithm  string  dynamic
ssl.truststore.certificates  password  listener
ssl.truststore.location  string  listener
ssl.truststore.password  password  listener
ssl.truststore.type  string  listener
telemetry.max.bytes  int
transaction.abort.timed.out.transaction.cleanup.interval.ms  int
transaction.partition.verification.enable  boolean  dynamic
transaction.remove.expired.transaction.cleanup.interval.ms  int
transaction.state.log.load.buffer.size  int
transaction.two.phase.commit.enable  boolean
unclean.leader.election.interval.ms  long
unstable.api.versions.enable  boolean
unstable.feature.versions.enable  boolean
"""
"""Name, type, and whether it can be changed while a broker runs, or is used by listeners."""


def _definition(line: str) -> Definition:
    name, kind, *flags = line.split()
    is_used = "listener" in flags
    return Definition(
        name,
        ConfigType[kind.upper()],
        None,
        "Kafka's documentation describes it.",
        dynamic="dynamic" in flags,
        sensitive=kind == "password",
        no_effect="" if is_used else "it is accepted only because Kafka's tools may send it",
    )


KAFKA_ONLY_CONFIGS: Final[Mapping[str, Definition]] = MappingProxyType(
    {each.name: each for each in map(_definition, _TABLE.strip().splitlines())}
)


_LIMITS: Final = {
    name: Definition(name, ConfigType.INT, None, doc, dynamic=False)
    for name, doc in (
        (
            "max.connections",
            "The maximum number of connections of this listener. The broker's limit also applies.",
        ),
        (
            "max.connection.creation.rate",
            "How many connections per second this listener accepts. Others are accepted later.",
        ),
    )
}
"""Limits of the broker that a listener can have for itself too."""


def kafka_only_config(name: str) -> Definition | None:
    """Returns the definition of a setting that Kafka knows and Penstock does not use; None for
    names that neither knows."""
    known = KAFKA_ONLY_CONFIGS.get(name)
    if known is None and (of_listener := _OF_LISTENER.fullmatch(name)) is not None:
        known = KAFKA_ONLY_CONFIGS.get(of_listener[1]) or _LIMITS.get(of_listener[1])
    return known if known is None else replace(known, name=name)
