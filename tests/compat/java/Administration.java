import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collection;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.Config;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.ConsumerGroupDescription;
import org.apache.kafka.clients.admin.DescribeClusterResult;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.admin.TopicDescription;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.common.Node;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;

/** The requests of administration tools, sent with the Admin client. */
final class Administration {
    static void run() throws Exception {
        try (Admin admin = Scenarios.admin()) {
            cluster(admin);
            topics(admin);
            configs(admin);
            groups(admin);
            directories(admin);
        }
    }

    private static void cluster(Admin admin) throws Exception {
        DescribeClusterResult found = admin.describeCluster();
        Set<String> nodes = new TreeSet<>();
        for (Node node : found.nodes().get()) {
            nodes.add(node.host() + ":" + node.port());
        }
        Scenarios.step("cluster",
                "nodes", nodes, "id", found.clusterId().get(),
                "controller", found.controller().get().id());
    }

    private static void topics(Admin admin) throws Exception {
        String topic = Scenarios.topic(admin, "topics", 2);
        TopicDescription found =
                admin.describeTopics(List.of(topic)).allTopicNames().get().get(topic);
        List<Object> partitions = new ArrayList<>();
        found.partitions().forEach(info -> partitions.add(List.of(
                info.partition(), info.leader().id(), info.replicas().size(), info.isr().size())));
        Scenarios.step("described",
                "partitions", partitions, "internal", found.isInternal(),
                "listed", admin.listTopics().names().get().contains(topic));
        admin.createPartitions(Map.of(topic, NewPartitions.increaseTo(5))).all().get();
        boolean grown = Scenarios.until(() -> {
            try {
                return admin.describeTopics(List.of(topic)).allTopicNames().get()
                        .get(topic).partitions().size() == 5;
            } catch (Exception notYet) {
                return false;
            }
        });
        Scenarios.step("grown", "grown", grown, "offsets", latest(admin, topic));
        Scenarios.step("refused",
                "exists", refusal(admin, new NewTopic(topic, 1, (short) 1)),
                "name", refusal(admin, new NewTopic("a b", 1, (short) 1)),
                "replicas", refusal(admin, new NewTopic(topic + "-r", 1, (short) 9)),
                "config", refusal(admin, new NewTopic(topic + "-c", 1, (short) 1)
                        .configs(Map.of("no.such.config", "1"))),
                "fewer", Scenarios.failure(() -> admin.createPartitions(
                        Map.of(topic, NewPartitions.increaseTo(1))).all().get()),
                "unknown", Scenarios.failure(() -> admin.describeTopics(
                        List.of(topic + "-none")).allTopicNames().get()));
        admin.deleteTopics(List.of(topic)).all().get();
        boolean gone = Scenarios.until(() -> {
            try {
                return !admin.listTopics().names().get().contains(topic);
            } catch (Exception notYet) {
                return false;
            }
        });
        Scenarios.step("deleted",
                "gone", gone,
                "again", Scenarios.failure(() -> admin.deleteTopics(List.of(topic)).all().get()));
        NewTopic defaults = new NewTopic(
                topic + "-d", java.util.Optional.empty(), java.util.Optional.empty());
        Scenarios.step("defaults",
                "partitions", admin.createTopics(List.of(defaults))
                        .numPartitions(topic + "-d").get());
    }

    private static String refusal(Admin admin, NewTopic topic) {
        return Scenarios.failure(() -> admin.createTopics(List.of(topic)).all().get());
    }

    private static Map<Object, Object> latest(Admin admin, String topic) throws Exception {
        Map<TopicPartition, OffsetSpec> wanted = new TreeMap<>(
                (a, b) -> Integer.compare(a.partition(), b.partition()));
        Scenarios.partitions(topic, 5).forEach(p -> wanted.put(p, OffsetSpec.latest()));
        Map<Object, Object> offsets = new TreeMap<>();
        admin.listOffsets(wanted).all().get()
                .forEach((partition, info) -> offsets.put(partition.partition(), info.offset()));
        return offsets;
    }

    private static void configs(Admin admin) throws Exception {
        String topic = Scenarios.topic(admin, "configs", 1, "retention.ms", "1000000");
        ConfigResource resource = new ConfigResource(ConfigResource.Type.TOPIC, topic);
        Config before = admin.describeConfigs(List.of(resource)).all().get().get(resource);
        Scenarios.step("configs",
                "retention.ms", before.get("retention.ms").value(),
                "source", before.get("retention.ms").source().name(),
                "cleanup.policy", before.get("cleanup.policy").value(),
                "default", before.get("cleanup.policy").isDefault(),
                "count", before.entries().size());
        Collection<AlterConfigOp> changes = Arrays.asList(
                change("segment.bytes", "2097152", AlterConfigOp.OpType.SET),
                change("cleanup.policy", "compact", AlterConfigOp.OpType.APPEND),
                change("retention.ms", "", AlterConfigOp.OpType.DELETE));
        admin.incrementalAlterConfigs(Map.of(resource, changes)).all().get();
        boolean changed = Scenarios.until(() -> {
            try {
                Config now = admin.describeConfigs(List.of(resource)).all().get().get(resource);
                return now.get("segment.bytes").value().equals("2097152")
                        && now.get("cleanup.policy").value().contains("compact")
                        && now.get("retention.ms").value().equals("604800000");
            } catch (Exception notYet) {
                return false;
            }
        });
        Scenarios.step("changed",
                "changed", changed,
                "refused", Scenarios.failure(() -> admin.incrementalAlterConfigs(Map.of(
                        resource, List.of(change("segment.bytes", "many",
                                AlterConfigOp.OpType.SET)))).all().get()));
        String id = String.valueOf(admin.describeCluster().controller().get().id());
        ConfigResource broker = new ConfigResource(ConfigResource.Type.BROKER, id);
        Set<String> names = new TreeSet<>();
        admin.describeConfigs(List.of(broker)).all().get().get(broker).entries()
                .forEach(entry -> names.add(entry.name()));
        Scenarios.step("broker configs", "names", names);
    }

    private static AlterConfigOp change(String name, String value, AlterConfigOp.OpType kind) {
        return new AlterConfigOp(new ConfigEntry(name, value), kind);
    }

    private static void groups(Admin admin) throws Exception {
        String topic = Scenarios.topic(admin, "groups", 2);
        String group = topic;
        Scenarios.sendNumbered(topic, 2, 0, 20);
        Set<TopicPartition> first = Set.of(new TopicPartition(topic, 0));
        try (Scenarios.Member member = new Scenarios.Member(group, topic)) {
            Scenarios.pump(() -> member.values.size() >= 20, member);
            member.consumer.commitSync();
            ConsumerGroupDescription found = describe(admin, group);
            Scenarios.step("live group",
                    "state", found.state().toString(),
                    "assignor", found.partitionAssignor(),
                    "members", found.members().size(),
                    "offsets", offsets(admin, group),
                    "delete", Scenarios.failure(
                            () -> admin.deleteConsumerGroups(List.of(group)).all().get()),
                    "delete offsets", Scenarios.failure(
                            () -> admin.deleteConsumerGroupOffsets(group, first).all().get()));
        }
        Scenarios.until(() -> {
            try {
                return describe(admin, group).members().isEmpty();
            } catch (Exception notYet) {
                return false;
            }
        });
        Scenarios.step("idle group",
                "state", describe(admin, group).state().toString(),
                "listed", admin.listConsumerGroups().all().get().stream()
                        .anyMatch(listing -> listing.groupId().equals(group)));
        admin.alterConsumerGroupOffsets(group, Map.of(
                new TopicPartition(topic, 1), new OffsetAndMetadata(3))).all().get();
        admin.deleteConsumerGroupOffsets(group, first).all().get();
        Scenarios.step("changed group", "offsets", offsets(admin, group));
        admin.deleteConsumerGroups(List.of(group)).all().get();
        Scenarios.step("deleted group",
                "again", Scenarios.failure(
                        () -> admin.deleteConsumerGroups(List.of(group)).all().get()),
                "offsets", offsets(admin, group));
    }

    private static ConsumerGroupDescription describe(Admin admin, String group) throws Exception {
        return admin.describeConsumerGroups(List.of(group)).all().get().get(group);
    }

    private static Map<Object, Object> offsets(Admin admin, String group) throws Exception {
        Map<Object, Object> found = new TreeMap<>();
        admin.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata().get()
                .forEach((partition, offset) -> found.put(partition.partition(), offset.offset()));
        return found;
    }

    private static void directories(Admin admin) throws Exception {
        String topic = Scenarios.topic(admin, "directories", 2);
        Scenarios.sendNumbered(topic, 1, 0, 100);
        Collection<Integer> brokers = new ArrayList<>();
        admin.describeCluster().nodes().get().forEach(node -> brokers.add(node.id()));
        Map<Object, Object> sizes = new TreeMap<>();
        admin.describeLogDirs(brokers).allDescriptions().get().values().forEach(
                directories -> directories.values().forEach(
                        directory -> directory.replicaInfos().forEach((partition, info) -> {
                            if (partition.topic().equals(topic)) {
                                sizes.put(partition.partition(), info.size());
                            }
                        })));
        Scenarios.step("directories", "sizes", sizes);
    }

    private Administration() {}
}
