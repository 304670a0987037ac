import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Properties;
import java.util.Set;
import java.util.TreeSet;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.ListShareGroupOffsetsSpec;
import org.apache.kafka.clients.admin.ShareGroupDescription;
import org.apache.kafka.clients.consumer.AcknowledgeType;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicIdPartition;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.serialization.StringDeserializer;

/**
 * Takes the records 0 to 3 of a topic, settles each in another way, and administers the group.
 * Prints what it sees.
 */
final class Shares {
    private static String bootstrap;
    private static String group;
    private static String topic;

    public static void main(String[] arguments) throws Exception {
        bootstrap = arguments[0];
        group = arguments[1];
        topic = arguments[2];
        try (Admin admin = Admin.create(Map.of("bootstrap.servers", bootstrap))) {
            ConfigEntry entry = new ConfigEntry("share.auto.offset.reset", "earliest");
            admin.incrementalAlterConfigs(Map.of(
                    new ConfigResource(ConfigResource.Type.GROUP, group),
                    List.of(new AlterConfigOp(entry, AlterConfigOp.OpType.SET)))).all().get();
            settle(admin);
            administer(admin);
        }
    }

    private static KafkaShareConsumer<String, String> member() {
        Properties options = new Properties();
        options.put("bootstrap.servers", bootstrap);
        options.put("group.id", group);
        options.put("share.acknowledgement.mode", "explicit");
        KafkaShareConsumer<String, String> made = new KafkaShareConsumer<>(
                options, new StringDeserializer(), new StringDeserializer());
        made.subscribe(List.of(topic));
        return made;
    }

    private static List<ConsumerRecord<String, String>> poll(
            KafkaShareConsumer<String, String> member) {
        long end = System.currentTimeMillis() + Patience.ms(30_000);
        List<ConsumerRecord<String, String>> found = new ArrayList<>();
        while (found.isEmpty() && System.currentTimeMillis() < end) {
            member.poll(Duration.ofMillis(500)).forEach(found::add);
        }
        return found;
    }

    private static void commit(KafkaShareConsumer<String, String> member) {
        Map<TopicIdPartition, Optional<KafkaException>> outcomes = member.commitSync();
        for (Optional<KafkaException> outcome : outcomes.values()) {
            if (outcome.isPresent()) {
                throw outcome.get();
            }
        }
    }

    private static void settle(Admin admin) throws Exception {
        Map<String, AcknowledgeType> how = new HashMap<>(Map.of(
                "0", AcknowledgeType.ACCEPT,
                "1", AcknowledgeType.RELEASE,
                "2", AcknowledgeType.REJECT,
                "3", AcknowledgeType.RENEW));
        Set<String> seen = new TreeSet<>();
        try (KafkaShareConsumer<String, String> member = member()) {
            while (seen.size() < 6) {
                List<ConsumerRecord<String, String>> found = poll(member);
                if (found.isEmpty()) {
                    break;
                }
                for (ConsumerRecord<String, String> record : found) {
                    AcknowledgeType type = how.getOrDefault(record.value(), AcknowledgeType.ACCEPT);
                    how.remove(record.value());
                    seen.add(record.value() + ":" + record.deliveryCount().get() + ":" + type);
                    member.acknowledge(record, type);
                }
                commit(member);
            }
            System.out.println("seen " + String.join(" ", seen));
            ShareGroupDescription described =
                    admin.describeShareGroups(List.of(group)).all().get().get(group);
            System.out.println("group " + described.groupState() + " "
                    + described.members().size() + " "
                    + described.members().iterator().next().assignment().topicPartitions());
        }
    }

    private static void administer(Admin admin) throws Exception {
        TopicPartition partition = new TopicPartition(topic, 0);
        System.out.println("type " + admin.listGroups().all().get().stream()
                .filter(each -> each.groupId().equals(group)).findFirst().get().type().get());
        System.out.println("offset " + offset(admin, partition));
        admin.alterShareGroupOffsets(group, Map.of(partition, 1L)).all().get();
        System.out.println("altered " + offset(admin, partition));
        admin.deleteShareGroupOffsets(group, Set.of(topic)).all().get();
        admin.deleteShareGroups(List.of(group)).all().get();
        System.out.println("left " + admin.listGroups().all().get().stream()
                .filter(each -> each.groupId().equals(group)).count());
    }

    private static long offset(Admin admin, TopicPartition partition) throws Exception {
        return admin.listShareGroupOffsets(Map.of(group, new ListShareGroupOffsetsSpec()))
                .partitionsToOffsetInfo(group).get().get(partition).startOffset();
    }
}
