import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Base64;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * Sends a record for every key on stdin (Base64, one per line), and prints the partition of each.
 * Arguments: BOOTSTRAP TOPIC. It uses the default partitioner of the Java producer.
 */
final class Keys {
    public static void main(String[] arguments) throws Exception {
        BufferedReader input = new BufferedReader(
                new InputStreamReader(System.in, StandardCharsets.US_ASCII));
        List<Future<RecordMetadata>> sent = new ArrayList<>();
        Map<String, Object> config = Map.of("bootstrap.servers", arguments[0], "linger.ms", 20);
        try (KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(
                config, new ByteArraySerializer(), new ByteArraySerializer())) {
            for (String line = input.readLine(); line != null; line = input.readLine()) {
                byte[] key = Base64.getDecoder().decode(line);
                sent.add(producer.send(new ProducerRecord<>(arguments[1], key, null)));
            }
            producer.flush();
            StringBuilder partitions = new StringBuilder();
            for (Future<RecordMetadata> each : sent) {
                partitions.append(each.get(30, TimeUnit.SECONDS).partition()).append('\n');
            }
            System.out.print(partitions);
            System.out.flush();
        }
    }
}
