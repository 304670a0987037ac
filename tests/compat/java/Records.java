import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Random;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.header.internals.RecordHeader;

/** Producing and consuming: codecs, headers, nulls, large records, idempotence, long polls. */
final class Records {
    static void run() throws Exception {
        try (Admin admin = Scenarios.admin()) {
            for (String codec : List.of("none", "gzip", "snappy", "lz4", "zstd")) {
                codec(admin, codec);
            }
            large(admin);
            idempotent(admin);
            acknowledgements(admin);
            latency(admin);
        }
        Scenarios.step("too large", "failure", Scenarios.failure(() -> {
            try (KafkaProducer<byte[], byte[]> producer =
                    Scenarios.producer("max.request.size", 5_000_000)) {
                return producer.send(new ProducerRecord<>(
                        Scenarios.prefix + "-none", noise(3_000_000))).get(15, TimeUnit.SECONDS);
            }
        }));
    }

    private static byte[] noise(int size) {
        byte[] data = new byte[size];
        new Random(7).nextBytes(data);
        return data;
    }

    private static void codec(Admin admin, String codec) throws Exception {
        String topic = Scenarios.topic(admin, codec, 1);
        List<ProducerRecord<byte[], byte[]>> records = new ArrayList<>();
        records.add(record(topic, 0, "key", "value"));
        records.add(record(topic, 1, null, "no key"));
        records.add(record(topic, 2, "tombstone", null));
        records.add(record(topic, 3, "", ""));
        ProducerRecord<byte[], byte[]> headed = record(topic, 4, "headers", "h");
        headed.headers().add("again", Scenarios.bytes("first"));
        headed.headers().add(new RecordHeader("null", (byte[]) null));
        headed.headers().add("again", Scenarios.bytes("second"));
        headed.headers().add("empty", new byte[0]);
        records.add(headed);
        for (int i = 5; i < 100; i++) {
            records.add(record(topic, i, "" + i, "compressible ".repeat(i)));
        }
        try (KafkaProducer<byte[], byte[]> producer =
                Scenarios.producer("compression.type", codec, "linger.ms", 50)) {
            Scenarios.send(producer, records);
        }
        for (String isolation : List.of("read_uncommitted", "read_committed")) {
            try (KafkaConsumer<byte[], byte[]> consumer =
                    Scenarios.consumer("isolation.level", isolation)) {
                consumer.assign(Scenarios.partitions(topic, 1));
                List<Object> shown = new ArrayList<>();
                Scenarios.read(consumer, records.size(), Patience.ms(15_000))
                        .forEach(record -> shown.add(Scenarios.shown(record)));
                Scenarios.step(codec + " " + isolation, "records", shown);
            }
        }
    }

    private static ProducerRecord<byte[], byte[]> record(
            String topic, int number, String key, String value) {
        return new ProducerRecord<>(
                topic, 0, Scenarios.time + number,
                key == null ? null : Scenarios.bytes(key),
                value == null ? null : Scenarios.bytes(value));
    }

    private static void large(Admin admin) throws Exception {
        String topic = Scenarios.topic(admin, "large", 1, "max.message.bytes", "2097152");
        byte[] data = noise(1024 * 1024);
        try (KafkaProducer<byte[], byte[]> producer =
                        Scenarios.producer("max.request.size", 2_000_000);
                KafkaConsumer<byte[], byte[]> consumer = Scenarios.consumer()) {
            Scenarios.send(producer, List.of(
                    new ProducerRecord<>(topic, Scenarios.bytes("before")),
                    new ProducerRecord<>(topic, data),
                    new ProducerRecord<>(topic, Scenarios.bytes("after"))));
            consumer.assign(Scenarios.partitions(topic, 1));
            List<ConsumerRecord<byte[], byte[]>> got = Scenarios.read(consumer, 3, Patience.ms(15_000));
            Scenarios.step("large",
                    "offsets", Scenarios.offsets(got),
                    "same", got.size() == 3 && Arrays.equals(got.get(1).value(), data));
        }
    }

    private static void idempotent(Admin admin) throws Exception {
        String topic = Scenarios.topic(admin, "idempotent", 3);
        List<ProducerRecord<byte[], byte[]>> records = new ArrayList<>();
        for (int i = 0; i < 1500; i++) {
            byte[] key = Scenarios.bytes("key-" + i % 30);
            records.add(new ProducerRecord<>(topic, key, Scenarios.bytes("" + i)));
        }
        long[] next = new long[3];
        boolean dense = true;
        Set<String> homes = new TreeSet<>();
        try (KafkaProducer<byte[], byte[]> producer = Scenarios.producer(
                "enable.idempotence", true, "acks", "all", "batch.size", 1000, "linger.ms", 0)) {
            List<RecordMetadata> placed = Scenarios.send(producer, records);
            for (int i = 0; i < placed.size(); i++) {
                dense &= placed.get(i).offset() == next[placed.get(i).partition()]++;
                homes.add(i % 30 + "@" + placed.get(i).partition());
            }
        }
        try (KafkaConsumer<byte[], byte[]> consumer = Scenarios.consumer()) {
            consumer.assign(Scenarios.partitions(topic, 3));
            Set<String> values = new TreeSet<>();
            List<ConsumerRecord<byte[], byte[]>> got = Scenarios.read(consumer, 1500, Patience.ms(15_000));
            got.forEach(record -> values.add(new String(record.value())));
            Scenarios.step("idempotent",
                    "dense", dense, "read", got.size(), "distinct", values.size(),
                    "homes", homes.size(), "used", Arrays.stream(next).filter(n -> n > 0).count());
        }
    }

    private static void acknowledgements(Admin admin) throws Exception {
        for (String acks : List.of("0", "1", "all")) {
            String topic = Scenarios.topic(admin, "acks-" + acks, 1);
            try (KafkaProducer<byte[], byte[]> producer =
                            Scenarios.producer("acks", acks, "enable.idempotence", false);
                    KafkaConsumer<byte[], byte[]> consumer = Scenarios.consumer()) {
                for (int i = 0; i < 50; i++) {
                    producer.send(new ProducerRecord<>(topic, Scenarios.bytes("" + i)));
                }
                producer.flush();
                consumer.assign(Scenarios.partitions(topic, 1));
                Scenarios.step("acks " + acks,
                        "offsets", Scenarios.offsets(Scenarios.read(consumer, 50, Patience.ms(15_000))));
            }
        }
    }

    private static void latency(Admin admin) throws Exception {
        String topic = Scenarios.topic(admin, "latency", 1);
        List<Object> waits = new ArrayList<>();
        try (KafkaProducer<byte[], byte[]> producer = Scenarios.producer();
                KafkaConsumer<byte[], byte[]> consumer =
                        Scenarios.consumer("fetch.max.wait.ms", Patience.ms(8000))) {
            consumer.assign(Scenarios.partitions(topic, 1));
            for (int i = 0; i < 4; i++) {
                Scenarios.read(consumer, 1, 400);
                long started = System.nanoTime();
                producer.send(new ProducerRecord<>(topic, Scenarios.bytes("" + i))).get();
                int count = Scenarios.read(consumer, 1, Patience.ms(30_000)).size();
                waits.add(count == 1 ? (System.nanoTime() - started) / 1_000_000 : -1);
            }
        }
        Scenarios.step("latency", "ms", waits);
    }

    private Records() {}
}
