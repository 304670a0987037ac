import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.Metric;
import org.apache.kafka.common.MetricName;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * Produces or consumes as fast as it can, and prints how much, one JSON object per step. It checks
 * nothing.
 *
 * <p>Arguments: the broker, a client id, a topic, "produce" or "consume", the size of a batch, and
 * when to print: after so many seconds; or "throttled", once the client is throttled. It ends after
 * the last of them. Bytes are those of values that were acknowledged or received.
 */
public final class Limited {
    static final int VALUE_BYTES = 1000;
    static final double RUN_S = 2;
    static final double DEADLINE_S = Patience.ms(100_000) / 1000.0;

    /** A client at work. */
    interface Work extends AutoCloseable {
        /** Sends or receives for a moment. */
        void advance() throws Exception;

        long bytes();

        Map<MetricName, ? extends Metric> metrics();

        @Override
        void close();
    }

    public static void main(String[] arguments) throws Exception {
        List<String> marks = new ArrayList<>(List.of(arguments).subList(5, arguments.length));
        Properties config = new Properties();
        config.put("bootstrap.servers", arguments[0]);
        config.put("client.id", arguments[1]);
        String topic = arguments[2];
        String batch = arguments[4];
        try (Work work = arguments[3].equals("produce")
                ? new Producing(config, topic, batch) : new Consuming(config, topic, batch)) {
            long began = System.nanoTime();
            while (!marks.isEmpty()) {
                work.advance();
                double seconds = (System.nanoTime() - began) / 1e9;
                double throttled = throttled(work.metrics());
                if (isDue(marks.get(0), seconds, throttled)) {
                    System.out.printf(Locale.ROOT,
                            "{\"step\": \"%s\", \"bytes\": %d, \"seconds\": %.3f, "
                            + "\"throttle_ms\": %.0f}%n",
                            marks.remove(0), work.bytes(), seconds, throttled);
                }
            }
        }
        System.exit(0);
    }

    static boolean isDue(String mark, double seconds, double throttled) {
        if (mark.equals("throttled")) {
            return seconds > RUN_S && throttled > 0 || seconds > DEADLINE_S;
        }
        return seconds >= Double.parseDouble(mark);
    }

    /** Returns the longest throttle time that the client reports. */
    static double throttled(Map<MetricName, ? extends Metric> metrics) {
        double longest = 0;
        for (Metric each : metrics.values()) {
            if (each.metricName().name().endsWith("-throttle-time-max")
                    && each.metricValue() instanceof Double value && !value.isNaN()) {
                longest = Math.max(longest, value);
            }
        }
        return longest;
    }

    static final class Producing implements Work {
        private static final int PENDING_MAX = 1000;
        private final KafkaProducer<byte[], byte[]> producer;
        private final String topic;
        private final byte[] value = new byte[VALUE_BYTES];
        private final AtomicLong sent = new AtomicLong();
        private final AtomicLong done = new AtomicLong();
        private final AtomicLong acknowledged = new AtomicLong();

        Producing(Properties config, String topic, String batch) {
            config.put("acks", "1");
            config.put("enable.idempotence", "false");
            config.put("linger.ms", "5");
            config.put("batch.size", batch);
            config.put("delivery.timeout.ms", "600000");
            this.topic = topic;
            producer = new KafkaProducer<>(
                    config, new ByteArraySerializer(), new ByteArraySerializer());
        }

        @Override
        public void advance() throws Exception {
            while (sent.get() - done.get() < PENDING_MAX) {
                sent.incrementAndGet();
                producer.send(new ProducerRecord<>(topic, 0, null, value), (where, error) -> {
                    done.incrementAndGet();
                    if (error == null) {
                        acknowledged.addAndGet(VALUE_BYTES);
                    }
                });
            }
            Thread.sleep(1);
        }

        @Override
        public long bytes() {
            return acknowledged.get();
        }

        @Override
        public Map<MetricName, ? extends Metric> metrics() {
            return producer.metrics();
        }

        @Override
        public void close() {
            producer.close(Duration.ZERO);
        }
    }

    static final class Consuming implements Work {
        private final KafkaConsumer<byte[], byte[]> consumer;
        private long received;

        Consuming(Properties config, String topic, String batch) {
            config.put("max.partition.fetch.bytes", batch);
            consumer = new KafkaConsumer<>(
                    config, new ByteArrayDeserializer(), new ByteArrayDeserializer());
            TopicPartition partition = new TopicPartition(topic, 0);
            consumer.assign(List.of(partition));
            consumer.seekToBeginning(List.of(partition));
        }

        @Override
        public void advance() {
            for (ConsumerRecord<byte[], byte[]> each : consumer.poll(Duration.ofMillis(50))) {
                received += each.value().length;
            }
        }

        @Override
        public long bytes() {
            return received;
        }

        @Override
        public Map<MetricName, ? extends Metric> metrics() {
            return consumer.metrics();
        }

        @Override
        public void close() {
            consumer.close(Duration.ZERO);
        }
    }
}
