import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Collection;
import java.util.List;
import java.util.Map;
import java.util.Queue;
import java.util.TreeSet;
import java.util.concurrent.ConcurrentLinkedQueue;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;

/**
 * A group member as a process. Arguments: BOOTSTRAP GROUP TOPIC ASSIGNOR-CLASS.
 *
 * It polls until it is closed, and prints its partitions ("owned 0 1"), its rebalance events
 * ("assigned 0 1", "revoked", "lost") and its records ("record PARTITION OFFSET VALUE"). Commands
 * on stdin: "commit" (answered with "committed") and "close"; the end of input means "close" too.
 */
final class Member {
    public static void main(String[] arguments) throws Exception {
        Queue<String> commands = new ConcurrentLinkedQueue<>();
        Thread listener = new Thread(() -> listen(commands));
        listener.setDaemon(true);
        listener.start();
        Map<String, Object> config = Map.ofEntries(
                Map.entry("bootstrap.servers", arguments[0]),
                Map.entry("group.id", arguments[1]),
                Map.entry("partition.assignment.strategy",
                        "org.apache.kafka.clients.consumer." + arguments[3]),
                Map.entry("auto.offset.reset", "earliest"),
                Map.entry("enable.auto.commit", false),
                Map.entry("session.timeout.ms", Patience.ms(10_000)),
                Map.entry("heartbeat.interval.ms", 150),
                Map.entry("fetch.max.wait.ms", 100),
                Map.entry("retry.backoff.ms", 50),
                Map.entry("allow.auto.create.topics", false));
        try (KafkaConsumer<String, String> consumer = new KafkaConsumer<>(
                config, new StringDeserializer(), new StringDeserializer())) {
            consumer.subscribe(List.of(arguments[2]), new Told());
            String owned = "";
            for (String command = ""; !"close".equals(command);) {
                consumer.poll(Duration.ofMillis(50)).forEach(record -> say(
                        "record " + record.partition() + " " + record.offset() + " "
                                + record.value()));
                String now = numbers(consumer.assignment());
                if (!now.equals(owned)) {
                    owned = now;
                    say("owned" + owned);
                }
                command = commands.poll();
                if ("commit".equals(command)) {
                    consumer.commitSync(Duration.ofMillis(Patience.ms(10_000)));
                    say("committed");
                }
            }
        }
    }

    private static void listen(Queue<String> commands) {
        try (BufferedReader input = new BufferedReader(
                new InputStreamReader(System.in, StandardCharsets.UTF_8))) {
            for (String line = input.readLine(); line != null; line = input.readLine()) {
                commands.add(line);
            }
        } catch (java.io.IOException gone) {
            say("stdin: " + gone);
        }
        commands.add("close");
    }

    private static void say(String line) {
        System.out.println(line);
        System.out.flush();
    }

    private static String numbers(Collection<TopicPartition> places) {
        TreeSet<Integer> sorted = new TreeSet<>();
        places.forEach(place -> sorted.add(place.partition()));
        StringBuilder text = new StringBuilder();
        sorted.forEach(number -> text.append(' ').append(number));
        return text.toString();
    }

    private static final class Told implements ConsumerRebalanceListener {
        @Override
        public void onPartitionsAssigned(Collection<TopicPartition> places) {
            say("assigned" + numbers(places));
        }

        @Override
        public void onPartitionsRevoked(Collection<TopicPartition> places) {
            say("revoked" + numbers(places));
        }

        @Override
        public void onPartitionsLost(Collection<TopicPartition> places) {
            say("lost" + numbers(places));
        }
    }
}
