import java.io.FileInputStream;
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
 * <p>Arguments: a file of properties, a topic to create, and a topic that it may not use.
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
        String topic = arguments[1];
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

    static String produce(Properties config, String topic) throws Exception {
        try (KafkaProducer<String, String> producer = new KafkaProducer<>(
                config, new StringSerializer(), new StringSerializer())) {
            for (String value : List.of("one", "two", "three")) {
                producer.send(new ProducerRecord<>(topic, value))
                        .get(DEADLINE_MS, TimeUnit.MILLISECONDS);
            }
            return "ok";
        }
    }

    static String consume(Properties given, String topic) {
        Properties config = new Properties();
        config.putAll(given);
        config.put("group.id", topic);
        config.put("auto.offset.reset", "earliest");
        List<String> values = new ArrayList<>();
        try (KafkaConsumer<String, String> consumer = new KafkaConsumer<>(
                config, new StringDeserializer(), new StringDeserializer())) {
            consumer.subscribe(List.of(topic));
            long deadline = System.currentTimeMillis() + DEADLINE_MS;
            while (values.size() < 3 && System.currentTimeMillis() < deadline) {
                for (ConsumerRecord<String, String> each : consumer.poll(Duration.ofMillis(200))) {
                    values.add(each.value());
                }
            }
            consumer.commitSync();
        }
        return String.join(" ", values);
    }
}
