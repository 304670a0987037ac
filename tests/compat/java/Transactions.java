import java.nio.charset.StandardCharsets;
import java.util.Map;
import java.util.Properties;
import org.apache.kafka.clients.consumer.ConsumerGroupMetadata;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.ProducerFencedException;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/** Transactions of twenty records to two partitions, every third aborted; then a fenced one. */
public final class Transactions {
    private static KafkaProducer<byte[], byte[]> producer(String bootstrap, String name) {
        Properties options = new Properties();
        options.put("bootstrap.servers", bootstrap);
        options.put("transactional.id", name);
        options.put("linger.ms", "1");
        var bytes = new ByteArraySerializer();
        var made = new KafkaProducer<byte[], byte[]>(options, bytes, new ByteArraySerializer());
        made.initTransactions();
        return made;
    }

    public static void main(String[] arguments) {
        String bootstrap = arguments[0];
        String topic = arguments[1];
        String name = arguments[2];
        String group = arguments[3];
        var place = new TopicPartition(topic, 0);
        boolean fenced = false;
        try (var producer = producer(bootstrap, name)) {
            for (int number = 0; number < 6; number++) {
                producer.beginTransaction();
                for (int each = 0; each < 20; each++) {
                    byte[] value = (number + "-" + each).getBytes(StandardCharsets.UTF_8);
                    producer.send(new ProducerRecord<>(topic, each % 2, null, value));
                }
                producer.flush();
                producer.sendOffsetsToTransaction(
                    Map.of(place, new OffsetAndMetadata(number)), new ConsumerGroupMetadata(group));
                if (number % 3 == 1) {
                    producer.abortTransaction();
                } else {
                    producer.commitTransaction();
                }
            }
            producer.beginTransaction();
            byte[] zombie = "zombie".getBytes(StandardCharsets.UTF_8);
            producer.send(new ProducerRecord<>(topic, 0, null, zombie));
            producer.flush();
            producer(bootstrap, name).close();
            try {
                producer.commitTransaction();
            } catch (ProducerFencedException refused) {
                fenced = true;
            }
        }
        System.out.println("{\"step\": \"end\", \"fenced\": " + fenced + "}");
    }
}
