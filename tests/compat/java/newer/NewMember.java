import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Collection;
import java.util.HashMap;
import java.util.Map;
import java.util.TreeSet;
import java.util.List;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.SubscriptionPattern;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;

/**
 * A member of a group as a process; `new_members.py` describes what it says.
 * Arguments: BOOTSTRAP GROUP TOPIC INSTANCE PROTOCOL. A topic that begins with ^ is a regular
 * expression, an instance of - is none. The protocol is `consumer`, the new one, or `classic`.
 */
final class NewMember {
    private static volatile boolean isClosing;

    public static void main(String[] arguments) throws Exception {
        Thread listener = new Thread(NewMember::listen);
        listener.setDaemon(true);
        listener.start();
        Map<String, Object> config = new HashMap<>(Map.ofEntries(
                Map.entry("bootstrap.servers", arguments[0]),
                Map.entry("group.id", arguments[1]),
                Map.entry("group.protocol", arguments[4]),
                Map.entry("auto.offset.reset", "earliest"),
                Map.entry("enable.auto.commit", false),
                Map.entry("fetch.max.wait.ms", 100),
                Map.entry("retry.backoff.ms", 50)));
        if (!arguments[3].equals("-")) {
            config.put("group.instance.id", arguments[3]);
        }
        if (arguments[4].equals("classic")) {
            // In the new protocol the broker decides.
            config.put("heartbeat.interval.ms", 300);
            config.put("session.timeout.ms", 45_000);
        }
        try (KafkaConsumer<String, String> consumer = new KafkaConsumer<>(
                config, new StringDeserializer(), new StringDeserializer())) {
            if (arguments[2].startsWith("^")) {
                consumer.subscribe(new SubscriptionPattern(arguments[2].substring(1)), new Told());
            } else {
                consumer.subscribe(List.of(arguments[2]), new Told());
            }
            String owned = "";
            while (!isClosing) {
                ConsumerRecords<String, String> records = consumer.poll(Duration.ofMillis(50));
                records.forEach(record -> say("record " + record.topic() + " "
                        + record.partition() + " " + record.offset() + " " + record.value()));
                String now = names(consumer.assignment());
                if (!now.equals(owned)) {
                    owned = now;
                    say("owned" + owned);
                }
                try {
                    if (!records.isEmpty()) {
                        consumer.commitSync(Duration.ofMillis(Patience.ms(10_000)));
                    }
                } catch (KafkaException refused) {
                    say("error " + refused);
                }
            }
        } catch (KafkaException fatal) {
            say("failed " + fatal);
            throw fatal;
        }
        say("closed");
    }

    private static void listen() {
        try (BufferedReader input = new BufferedReader(
                new InputStreamReader(System.in, StandardCharsets.UTF_8))) {
            input.readLine();
        } catch (java.io.IOException gone) {
            say("stdin: " + gone);
        }
        isClosing = true;
    }

    private static synchronized void say(String line) {
        System.out.println(line);
        System.out.flush();
    }

    private static String names(Collection<TopicPartition> places) {
        TreeSet<String> sorted = new TreeSet<>();
        places.forEach(place -> sorted.add(place.topic() + "-" + place.partition()));
        StringBuilder text = new StringBuilder();
        sorted.forEach(name -> text.append(' ').append(name));
        return text.toString();
    }

    private static final class Told implements ConsumerRebalanceListener {
        @Override
        public void onPartitionsAssigned(Collection<TopicPartition> places) {
            say("assigned" + names(places));
        }

        @Override
        public void onPartitionsRevoked(Collection<TopicPartition> places) {
            say("revoked" + names(places));
        }

        @Override
        public void onPartitionsLost(Collection<TopicPartition> places) {
            say("lost" + names(places));
        }
    }
}
