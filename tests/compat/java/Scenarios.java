import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Base64;
import java.util.Collection;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.function.BooleanSupplier;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * Runs one scenario against a broker and prints what happened, one JSON object per step.
 *
 * <p>It checks nothing; the Python test that started it does. Arguments: bootstrap, scenario, a
 * name that was never used before, the timestamp of the first record.
 */
public final class Scenarios {
    static final long DEADLINE_MS = Patience.ms(20_000);
    static String bootstrap;
    static String prefix;
    static long time;

    public static void main(String[] arguments) throws Exception {
        bootstrap = arguments[0];
        prefix = arguments[2];
        time = Long.parseLong(arguments[3]);
        switch (arguments[1]) {
            case "records" -> Records.run();
            case "groups" -> Groups.run();
            case "offsets" -> Offsets.run();
            case "admin" -> Administration.run();
            default -> throw new IllegalArgumentException("no scenario " + arguments[1]);
        }
    }

    // Shared by the scenarios.

    static Map<String, Object> common() {
        Map<String, Object> config = new LinkedHashMap<>();
        config.put("bootstrap.servers", bootstrap);
        config.put("request.timeout.ms", Patience.ms(10_000));
        config.put("default.api.timeout.ms", Patience.ms(15_000));
        config.put("retry.backoff.ms", 50);
        return config;
    }

    static Admin admin() {
        return Admin.create(common());
    }

    static String topic(Admin admin, String suffix, int partitions, String... configs)
            throws Exception {
        String name = prefix + "-" + suffix;
        Map<String, String> settings = new LinkedHashMap<>();
        for (int i = 0; i < configs.length; i += 2) {
            settings.put(configs[i], configs[i + 1]);
        }
        NewTopic topic = new NewTopic(name, partitions, (short) 1).configs(settings);
        admin.createTopics(List.of(topic)).all().get(Patience.ms(15_000), TimeUnit.MILLISECONDS);
        until(() -> {
            try {
                return admin.describeTopics(List.of(name)).allTopicNames().get()
                        .get(name).partitions().size() == partitions;
            } catch (ExecutionException | InterruptedException notYet) {
                return false;
            }
        });
        return name;
    }

    static KafkaProducer<byte[], byte[]> producer(Object... settings) {
        Map<String, Object> config = common();
        config.put("delivery.timeout.ms", Patience.ms(15_000));
        config.put("linger.ms", 5);
        put(config, settings);
        return new KafkaProducer<>(config, new ByteArraySerializer(), new ByteArraySerializer());
    }

    static KafkaConsumer<byte[], byte[]> consumer(Object... settings) {
        Map<String, Object> config = common();
        config.put("auto.offset.reset", "earliest");
        config.put("enable.auto.commit", false);
        config.put("session.timeout.ms", Patience.ms(10_000));
        config.put("heartbeat.interval.ms", 150);
        config.put("fetch.max.wait.ms", 250);
        config.put("allow.auto.create.topics", false);
        put(config, settings);
        return new KafkaConsumer<>(
                config, new ByteArrayDeserializer(), new ByteArrayDeserializer());
    }

    private static void put(Map<String, Object> config, Object... settings) {
        for (int i = 0; i < settings.length; i += 2) {
            config.put((String) settings[i], settings[i + 1]);
        }
    }

    static List<RecordMetadata> send(
            KafkaProducer<byte[], byte[]> producer, List<ProducerRecord<byte[], byte[]>> records)
            throws Exception {
        List<Future<RecordMetadata>> futures = new ArrayList<>();
        for (ProducerRecord<byte[], byte[]> record : records) {
            futures.add(producer.send(record));
        }
        producer.flush();
        List<RecordMetadata> placed = new ArrayList<>();
        for (Future<RecordMetadata> future : futures) {
            placed.add(future.get(Patience.ms(15_000), TimeUnit.MILLISECONDS));
        }
        return placed;
    }

    /** Produces numbered records, to the partitions in turn. */
    static void sendNumbered(String topic, int partitions, int from, int to) throws Exception {
        try (KafkaProducer<byte[], byte[]> producer = producer()) {
            List<ProducerRecord<byte[], byte[]>> records = new ArrayList<>();
            for (int i = from; i < to; i++) {
                records.add(new ProducerRecord<>(
                        topic, i % partitions, time + 1000L * i, null, bytes("" + i)));
            }
            send(producer, records);
        }
    }

    static List<TopicPartition> partitions(String topic, int count) {
        List<TopicPartition> all = new ArrayList<>();
        for (int i = 0; i < count; i++) {
            all.add(new TopicPartition(topic, i));
        }
        return all;
    }

    static List<ConsumerRecord<byte[], byte[]>> read(
            KafkaConsumer<byte[], byte[]> consumer, int count, long withinMs) {
        List<ConsumerRecord<byte[], byte[]>> got = new ArrayList<>();
        long deadline = System.currentTimeMillis() + withinMs;
        while (got.size() < count && System.currentTimeMillis() < deadline) {
            consumer.poll(Duration.ofMillis(100)).forEach(got::add);
        }
        return got;
    }

    static boolean until(BooleanSupplier condition) throws InterruptedException {
        long deadline = System.currentTimeMillis() + DEADLINE_MS;
        while (!condition.getAsBoolean()) {
            if (System.currentTimeMillis() > deadline) {
                return false;
            }
            TimeUnit.MILLISECONDS.sleep(20);
        }
        return true;
    }

    /** Returns the name of the exception that a call throws, or "none". */
    static String failure(Callable<?> call) {
        try {
            call.call();
            return "none";
        } catch (ExecutionException wrapped) {
            return wrapped.getCause().getClass().getSimpleName();
        } catch (Exception plain) {
            return plain.getClass().getSimpleName();
        }
    }

    static byte[] bytes(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }

    static String base64(byte[] data) {
        return data == null ? null : Base64.getEncoder().encodeToString(data);
    }

    static Map<String, Object> shown(ConsumerRecord<byte[], byte[]> record) {
        List<Object> headers = new ArrayList<>();
        for (Header header : record.headers()) {
            headers.add(Arrays.asList(header.key(), base64(header.value())));
        }
        Map<String, Object> fields = new LinkedHashMap<>();
        fields.put("partition", record.partition());
        fields.put("offset", record.offset());
        fields.put("timestamp", record.timestamp());
        fields.put("key", base64(record.key()));
        fields.put("value", base64(record.value()));
        fields.put("headers", headers);
        return fields;
    }

    static List<Object> offsets(Collection<ConsumerRecord<byte[], byte[]>> records) {
        List<Object> all = new ArrayList<>();
        records.forEach(record -> all.add(record.offset()));
        return all;
    }

    static void step(String name, Object... fields) {
        Map<String, Object> object = new LinkedHashMap<>();
        object.put("step", name);
        for (int i = 0; i < fields.length; i += 2) {
            object.put((String) fields[i], fields[i + 1]);
        }
        System.out.println(json(object));
        System.out.flush();
    }

    static String json(Object value) {
        if (value == null || value instanceof Number || value instanceof Boolean) {
            return String.valueOf(value);
        }
        if (value instanceof Map<?, ?> map) {
            List<String> parts = new ArrayList<>();
            map.forEach((key, item) -> parts.add(json(String.valueOf(key)) + ":" + json(item)));
            return "{" + String.join(",", parts) + "}";
        }
        if (value instanceof Collection<?> items) {
            List<String> parts = new ArrayList<>();
            items.forEach(item -> parts.add(json(item)));
            return "[" + String.join(",", parts) + "]";
        }
        StringBuilder text = new StringBuilder("\"");
        for (char c : value.toString().toCharArray()) {
            if (c == '"' || c == '\\' || c < 32) {
                text.append(String.format("\\u%04x", (int) c));
            } else {
                text.append(c);
            }
        }
        return text.append('"').toString();
    }

    /** A group member that records its assignments and the records it read. */
    static final class Member implements AutoCloseable {
        final KafkaConsumer<byte[], byte[]> consumer;
        final List<String> values = new ArrayList<>();
        final List<Object> rebalances = new ArrayList<>();

        Member(String group, String topic, Object... settings) {
            Object[] all = Arrays.copyOf(settings, settings.length + 2);
            all[settings.length] = "group.id";
            all[settings.length + 1] = group;
            consumer = consumer(all);
            consumer.subscribe(List.of(topic), new ConsumerRebalanceListener() {
                @Override
                public void onPartitionsAssigned(Collection<TopicPartition> partitions) {
                    note("assigned", partitions);
                }

                @Override
                public void onPartitionsRevoked(Collection<TopicPartition> partitions) {
                    note("revoked", partitions);
                }

                @Override
                public void onPartitionsLost(Collection<TopicPartition> partitions) {
                    note("lost", partitions);
                }
            });
        }

        private void note(String what, Collection<TopicPartition> partitions) {
            rebalances.add(List.of(what, numbers(partitions)));
        }

        static Set<Integer> numbers(Collection<TopicPartition> partitions) {
            Set<Integer> numbers = new TreeSet<>();
            partitions.forEach(partition -> numbers.add(partition.partition()));
            return numbers;
        }

        Set<Integer> owned() {
            return numbers(consumer.assignment());
        }

        void poll() {
            consumer.poll(Duration.ofMillis(50)).forEach(
                    record -> values.add(new String(record.value(), StandardCharsets.UTF_8)));
        }

        @Override
        public void close() {
            consumer.close();
        }
    }

    static boolean pump(BooleanSupplier condition, Member... members) {
        long deadline = System.currentTimeMillis() + DEADLINE_MS;
        while (!condition.getAsBoolean()) {
            if (System.currentTimeMillis() > deadline) {
                return false;
            }
            for (Member member : members) {
                member.poll();
            }
        }
        return true;
    }

    /** Requires equal shares: they are unequal during a cooperative rebalance. */
    static boolean covered(int partitions, Member... members) {
        Map<Integer, Integer> owners = new TreeMap<>();
        for (Member member : members) {
            if (member.owned().size() != partitions / members.length) {
                return false;
            }
            member.owned().forEach(partition -> owners.merge(partition, 1, Integer::sum));
        }
        return owners.size() == partitions && owners.values().stream().allMatch(n -> n == 1);
    }
}
