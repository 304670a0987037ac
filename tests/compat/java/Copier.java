import java.io.IOException;
import java.time.Duration;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.TimeoutException;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * Copies a topic in transactions until SIGTERM, as tests/chaos/transactions_copier.py does. It
 * takes the same arguments except the first, prints the same lines, and ends when its standard
 * input closes.
 */
public final class Copier {
    private static final int FATAL = 3;
    private static final Duration POLL = Duration.ofMillis(200);
    private static final CountDownLatch STOPPING = new CountDownLatch(1);
    private static final CountDownLatch STOPPED = new CountDownLatch(1);

    private static final class Drawn extends RuntimeException {}

    private final String source;
    private final String target;
    private final int size;
    private final long pauseMs;
    private final int abortOneIn;
    private final KafkaConsumer<byte[], byte[]> consumer;
    private final KafkaProducer<byte[], byte[]> producer;
    private long committed = 0;

    private Copier(String[] arguments) {
        source = arguments[1];
        target = arguments[2];
        size = Integer.parseInt(arguments[5]);
        pauseMs = Long.parseLong(arguments[6]);
        abortOneIn = Integer.parseInt(arguments[7]);
        var reading = new Properties();
        reading.put("bootstrap.servers", arguments[0]);
        reading.put("group.id", arguments[3]);
        reading.put("enable.auto.commit", "false");
        reading.put("auto.offset.reset", "earliest");
        reading.put("isolation.level", "read_committed");
        reading.put("session.timeout.ms", "6000");
        reading.put("heartbeat.interval.ms", "1000");
        reading.put("request.timeout.ms", "10000");
        reading.put("max.poll.records", String.valueOf(size));
        consumer = new KafkaConsumer<>(
            reading, new ByteArrayDeserializer(), new ByteArrayDeserializer());
        var writing = new Properties();
        writing.put("bootstrap.servers", arguments[0]);
        writing.put("transactional.id", arguments[4]);
        writing.put("transaction.timeout.ms", "60000");
        writing.put("request.timeout.ms", "10000");
        writing.put("linger.ms", "2");
        producer = new KafkaProducer<>(writing, new ByteArraySerializer(), new ByteArraySerializer());
    }

    private static synchronized void tell(String name, Object what) {
        String text = String.valueOf(what).replace('\\', '/').replace('"', '\'').replace('\n', ' ');
        System.out.println("{\"" + name + "\": \"" + text + "\"}");
    }

    private void run() throws InterruptedException {
        insist(producer::initTransactions);
        consumer.subscribe(List.of(source));
        while (STOPPING.getCount() > 0) {
            ConsumerRecords<byte[], byte[]> records = consumer.poll(POLL);
            if (!records.isEmpty()) {
                copy(records);
            }
        }
        consumer.close();
        producer.close();
        tell("stopped", committed);
    }

    private void copy(ConsumerRecords<byte[], byte[]> records) throws InterruptedException {
        var ends = new HashMap<TopicPartition, OffsetAndMetadata>();
        try {
            producer.beginTransaction();
            for (ConsumerRecord<byte[], byte[]> each : records) {
                producer.send(new ProducerRecord<>(
                    target, each.partition(), each.key(), each.value()));
                ends.put(
                    new TopicPartition(source, each.partition()),
                    new OffsetAndMetadata(each.offset() + 1));
            }
            STOPPING.await(pauseMs, TimeUnit.MILLISECONDS);
            if (ThreadLocalRandom.current().nextInt(abortOneIn) == 0) {
                producer.flush();
                throw new Drawn();
            }
            insist(() -> producer.sendOffsetsToTransaction(ends, consumer.groupMetadata()));
            insist(producer::commitTransaction);
            committed++;
        } catch (KafkaException | Drawn error) {
            tell("aborted", error instanceof Drawn ? "drawn" : error);
            insist(producer::abortTransaction);
            goBack();
        }
    }

    /** Seeks to the group's committed offsets; everything after them is not copied yet. */
    private void goBack() {
        insist(() -> {
            var assigned = consumer.assignment();
            Map<TopicPartition, OffsetAndMetadata> known = consumer.committed(assigned);
            for (TopicPartition place : assigned) {
                OffsetAndMetadata at = known.get(place);
                consumer.seek(place, at == null ? 0 : at.offset());
            }
        });
    }

    /** Repeats a call that timed out; the client continues where it was. */
    private static void insist(Runnable call) {
        while (true) {
            try {
                call.run();
                return;
            } catch (TimeoutException late) {
                tell("late", late);
            }
        }
    }

    private static void endWithStdin() {
        var watch = new Thread(() -> {
            try {
                while (System.in.read() >= 0) {}
            } catch (IOException gone) {
                tell("gone", gone);
            }
            Runtime.getRuntime().halt(FATAL);
        });
        watch.setDaemon(true);
        watch.start();
    }

    public static void main(String[] arguments) {
        endWithStdin();
        Runtime.getRuntime().addShutdownHook(new Thread(() -> {
            STOPPING.countDown();
            try {
                STOPPED.await(90, TimeUnit.SECONDS);
            } catch (InterruptedException cut) {
                tell("cut", cut);
            }
        }));
        tell("began", arguments[4]);
        try {
            new Copier(arguments).run();
        } catch (KafkaException | InterruptedException error) {
            tell("fatal", error);
            Runtime.getRuntime().halt(FATAL);
        } finally {
            STOPPED.countDown();
        }
    }
}
