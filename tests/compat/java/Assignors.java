import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.Base64;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Scanner;
import java.util.Set;
import org.apache.kafka.clients.consumer.ConsumerGroupMetadata;
import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor;
import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor.Assignment;
import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor.GroupSubscription;
import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor.Subscription;
import org.apache.kafka.clients.consumer.CooperativeStickyAssignor;
import org.apache.kafka.clients.consumer.RangeAssignor;
import org.apache.kafka.clients.consumer.RoundRobinAssignor;
import org.apache.kafka.clients.consumer.StickyAssignor;
import org.apache.kafka.clients.consumer.internals.ConsumerProtocol;
import org.apache.kafka.common.Cluster;
import org.apache.kafka.common.Node;
import org.apache.kafka.common.PartitionInfo;
import org.apache.kafka.common.TopicPartition;

/**
 * Runs Java's assignors on groups described on stdin, without a broker:
 *
 *   topic NAME PARTITIONS
 *   member ID INSTANCE|- TOPIC,TOPIC|- GENERATION TOPIC:PARTITION,...|-
 *   assign
 *
 * For every "assign" it prints a line per assignor and member, "ASSIGNOR ID TOPIC:PARTITION,...|-",
 * a line "bytes ID SUBSCRIPTION" with what each member would send, and "end". Then it reads the
 * next group.
 */
final class Assignors {
    private static final Node NODE = new Node(0, "localhost", 9092);

    public static void main(String[] arguments) {
        Map<String, Integer> topics = new LinkedHashMap<>();
        List<String[]> members = new ArrayList<>();
        Scanner input = new Scanner(System.in);
        while (input.hasNextLine()) {
            String[] words = input.nextLine().split(" ");
            switch (words[0]) {
                case "topic" -> topics.put(words[1], Integer.parseInt(words[2]));
                case "member" -> members.add(words);
                default -> {
                    for (ConsumerPartitionAssignor assignor : List.of(
                            new RangeAssignor(), new RoundRobinAssignor(),
                            new StickyAssignor(), new CooperativeStickyAssignor())) {
                        assign(assignor, topics, members);
                    }
                    System.out.println("end");
                    topics.clear();
                    members.clear();
                }
            }
        }
        System.out.flush();
    }

    private static void assign(
            ConsumerPartitionAssignor assignor, Map<String, Integer> topics,
            List<String[]> members) {
        List<PartitionInfo> partitions = new ArrayList<>();
        Node[] nodes = {NODE};
        topics.forEach((topic, count) -> {
            for (int i = 0; i < count; i++) {
                partitions.add(new PartitionInfo(topic, i, NODE, nodes, nodes));
            }
        });
        Cluster cluster = new Cluster("c", List.of(NODE), partitions, Set.of(), Set.of());
        Map<String, Subscription> subscriptions = new LinkedHashMap<>();
        for (String[] member : members) {
            subscriptions.put(member[1], subscription(assignor, member));
        }
        Map<String, Assignment> given =
                assignor.assign(cluster, new GroupSubscription(subscriptions)).groupAssignment();
        given.forEach((member, assignment) -> System.out.println(
                assignor.name() + " " + member + " " + shown(assignment.partitions())));
    }

    private static Subscription subscription(ConsumerPartitionAssignor leader, String[] member) {
        List<String> topics =
                member[3].equals("-") ? List.of() : List.of(member[3].split(","));
        int generation = Integer.parseInt(member[4]);
        List<TopicPartition> owned = new ArrayList<>();
        if (!member[5].equals("-")) {
            for (String place : member[5].split(",")) {
                String[] parts = place.split(":");
                owned.add(new TopicPartition(parts[0], Integer.parseInt(parts[1])));
            }
        }
        ByteBuffer userData = null;
        if (leader instanceof StickyAssignor) {
            StickyAssignor own = new StickyAssignor();
            if (generation >= 0) {
                own.onAssignment(new Assignment(owned), new ConsumerGroupMetadata(
                        "g", generation, member[1], Optional.empty()));
            }
            userData = own.subscriptionUserData(Set.copyOf(topics));
        }
        Subscription subscription =
                new Subscription(topics, userData, owned, generation, Optional.empty());
        if (!member[2].equals("-")) {
            subscription.setGroupInstanceId(Optional.of(member[2]));
        }
        if (leader instanceof StickyAssignor) {
            byte[] bytes = ConsumerProtocol.serializeSubscription(subscription).array();
            System.out.println(
                    "bytes " + member[1] + " " + Base64.getEncoder().encodeToString(bytes));
            if (userData != null) {
                userData.rewind();
            }
        }
        return subscription;
    }

    private static String shown(List<TopicPartition> places) {
        List<String> words = new ArrayList<>();
        places.forEach(place -> words.add(place.topic() + ":" + place.partition()));
        return words.isEmpty() ? "-" : String.join(",", words);
    }
}
