import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndTimestamp;
import org.apache.kafka.common.TopicPartition;

/** Seeking, offsets by timestamp, pausing, and reset policies. */
final class Offsets {
    static void run() throws Exception {
        try (Admin admin = Scenarios.admin()) {
            String topic = Scenarios.topic(admin, "offsets", 1);
            Scenarios.sendNumbered(topic, 1, 0, 50);
            TopicPartition partition = new TopicPartition(topic, 0);
            try (KafkaConsumer<byte[], byte[]> consumer = Scenarios.consumer()) {
                consumer.assign(List.of(partition));
                Scenarios.step("bounds",
                        "first", consumer.beginningOffsets(List.of(partition)).get(partition),
                        "next", consumer.endOffsets(List.of(partition)).get(partition));
                seek(consumer, partition);
                times(consumer, partition);
                pause(consumer, partition, topic);
                consumer.seek(partition, 5000);
                Scenarios.step("out of range", "offset", firstRead(consumer));
                admin.deleteRecords(Map.of(partition, RecordsToDelete.beforeOffset(20)))
                        .all().get();
                consumer.seekToBeginning(List.of(partition));
                Scenarios.step("deleted",
                        "first", consumer.beginningOffsets(List.of(partition)).get(partition),
                        "read", firstRead(consumer));
            }
            resets(topic, partition);
        }
    }

    private static long firstRead(KafkaConsumer<byte[], byte[]> consumer) {
        return Scenarios.read(consumer, 1, Patience.ms(10_000)).get(0).offset();
    }

    private static void seek(KafkaConsumer<byte[], byte[]> consumer, TopicPartition partition) {
        for (long target : new long[] {0, 33, 49, 7}) {
            consumer.seek(partition, target);
            int count = (int) (50 - target);
            Scenarios.step("seek " + target,
                    "offsets", Scenarios.offsets(Scenarios.read(consumer, count, Patience.ms(10_000))),
                    "position", consumer.position(partition));
        }
    }

    private static void times(KafkaConsumer<byte[], byte[]> consumer, TopicPartition partition) {
        List<Object> found = new ArrayList<>();
        for (long ms : new long[] {-1, 0, 1, 30_000, 29_500, 49_000, 49_001}) {
            OffsetAndTimestamp at =
                    consumer.offsetsForTimes(Map.of(partition, Scenarios.time + ms)).get(partition);
            found.add(at == null ? null : at.offset());
        }
        Scenarios.step("times", "offsets", found);
    }

    private static void pause(
            KafkaConsumer<byte[], byte[]> consumer, TopicPartition partition, String topic)
            throws Exception {
        consumer.seek(partition, 50);
        consumer.pause(List.of(partition));
        Scenarios.sendNumbered(topic, 1, 50, 53);
        int paused = Scenarios.read(consumer, 1, 500).size();
        consumer.resume(List.of(partition));
        Scenarios.step("pause",
                "paused", paused,
                "resumed", Scenarios.offsets(Scenarios.read(consumer, 3, Patience.ms(10_000))));
    }

    private static void resets(String topic, TopicPartition partition) {
        try (KafkaConsumer<byte[], byte[]> consumer = Scenarios.consumer(
                "auto.offset.reset", "none", "group.id", topic + "-none")) {
            consumer.assign(List.of(partition));
            Scenarios.step("reset none", "failure",
                    Scenarios.failure(() -> consumer.poll(Duration.ofMillis(Patience.ms(10_000)))));
        }
        try (KafkaConsumer<byte[], byte[]> consumer = Scenarios.consumer(
                "auto.offset.reset", "latest", "group.id", topic + "-latest")) {
            consumer.assign(List.of(partition));
            Scenarios.step("reset latest", "position", consumer.position(partition));
        }
    }

    private Offsets() {}
}
