import java.io.BufferedReader;
import java.io.FileInputStream;
import java.io.InputStreamReader;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Properties;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * Uses a secured broker and prints what happened, one JSON object per step. It checks nothing.
 *
 * <p>Arguments: a file of properties, a topic to create, and a topic that it may not use. The
 * property "bootstrap" has the brokers, if the file does not name them. If "live"
 * follows, it uses the second topic, waits for a line of input, and uses it again with the same
 * connections.
 */
public final class Secured {
    static final long DEADLINE_MS = Patience.ms(30_000);

    interface Step {
        String run() throws Exception;
    }

    public static void main(String[] arguments) throws Exception {
        Properties config = new Properties();
        try (FileInputStream file = new FileInputStream(arguments[0])) {
            config.load(file);
        }
        if (System.getProperty("bootstrap") != null) {
            config.put("bootstrap.servers", System.getProperty("bootstrap"));
        }
        String topic = arguments[1];
        if (arguments.length > 3) {
            live(config, topic, arguments[2]);
            return;
        }
        step("create", () -> {
            try (Admin admin = Admin.create(config)) {
                admin.createTopics(List.of(new NewTopic(topic, 1, (short) 1))).all()
                        .get(DEADLINE_MS, TimeUnit.MILLISECONDS);
                return "ok";
            }
        });
        step("produce", () -> produce(config, topic));
        step("consume", () -> consume(config, topic));
        step("list", () -> {
            try (Admin admin = Admin.create(config)) {
                boolean found = admin.listTopics().names()
                        .get(DEADLINE_MS, TimeUnit.MILLISECONDS).contains(topic);
                return found ? "ok" : "missing";
            }
        });
        step("other", () -> produce(config, arguments[2]));
    }

    static void step(String name, Step step) {
        String result;
        try {
            result = step.run();
        } catch (ExecutionException error) {
            result = error.getCause().getClass().getSimpleName();
        } catch (Exception error) {
            result = error.getClass().getSimpleName();
        }
        System.out.println("{\"step\": \"" + name + "\", \"result\": \"" + result + "\"}");
    }

    /** Uses a topic with one producer and one member of a group, before and after a change. */
    static void live(Properties config, String group, String topic) throws Exception {
        try (KafkaProducer<String, String> producer = producer(config);
                KafkaConsumer<String, String> consumer = member(config, topic, group)) {
            step("produce", () -> produce(producer, topic, List.of("one")));
            step("consume", () -> consume(consumer, 1));
            System.out.println("{\"step\": \"ready\"}");
            new BufferedReader(new InputStreamReader(System.in)).readLine();
            step("produce again", () -> produce(producer, topic, List.of("two")));
            step("consume again", () -> consume(consumer, 1));
        }
    }

    static KafkaProducer<String, String> producer(Properties config) {
        return new KafkaProducer<>(config, new StringSerializer(), new StringSerializer());
    }

    static KafkaConsumer<String, String> member(Properties given, String topic, String group) {
        Properties config = new Properties();
        config.putAll(given);
        config.put("group.id", group);
        config.put("auto.offset.reset", "earliest");
        config.put("enable.auto.commit", "false");
        KafkaConsumer<String, String> consumer =
                new KafkaConsumer<>(config, new StringDeserializer(), new StringDeserializer());
        consumer.subscribe(List.of(topic));
        return consumer;
    }

    static String produce(Properties config, String topic) throws Exception {
        try (KafkaProducer<String, String> producer = producer(config)) {
            return produce(producer, topic, List.of("one", "two", "three"));
        }
    }

    static String produce(KafkaProducer<String, String> producer, String topic, List<String> values)
            throws Exception {
        for (String value : values) {
            producer.send(new ProducerRecord<>(topic, value))
                    .get(DEADLINE_MS, TimeUnit.MILLISECONDS);
        }
        return "ok";
    }

    static String consume(Properties config, String topic) {
        try (KafkaConsumer<String, String> consumer = member(config, topic, topic)) {
            String values = consume(consumer, 3);
            consumer.commitSync();
            return values;
        }
    }

    static String consume(KafkaConsumer<String, String> consumer, int count) {
        List<String> values = new ArrayList<>();
        long deadline = System.currentTimeMillis() + DEADLINE_MS;
        while (values.size() < count && System.currentTimeMillis() < deadline) {
            for (ConsumerRecord<String, String> each : consumer.poll(Duration.ofMillis(200))) {
                values.add(each.value());
            }
        }
        return String.join(" ", values);
    }
}
