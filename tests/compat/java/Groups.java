import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.common.TopicPartition;

/** Members that join and leave, with every assignor; commits; static members. */
final class Groups {
    private static final String PACKAGE = "org.apache.kafka.clients.consumer.";

    static void run() throws Exception {
        try (Admin admin = Scenarios.admin()) {
            for (String assignor : List.of(
                    "RangeAssignor", "RoundRobinAssignor", "StickyAssignor",
                    "CooperativeStickyAssignor")) {
                membership(admin, assignor);
            }
            resume(admin);
            statics(admin);
        }
    }

    private static void membership(Admin admin, String assignor) throws Exception {
        String topic = Scenarios.topic(admin, assignor, 6);
        Object[] settings = {"partition.assignment.strategy", PACKAGE + assignor};
        List<Object> covered = new ArrayList<>();
        Scenarios.Member first = new Scenarios.Member(topic, topic, settings);
        covered.add(Scenarios.pump(() -> Scenarios.covered(6, first), first));
        Scenarios.Member second = new Scenarios.Member(topic, topic, settings);
        covered.add(Scenarios.pump(() -> Scenarios.covered(6, first, second), first, second));
        int before = first.rebalances.size();
        Scenarios.Member third = new Scenarios.Member(topic, topic, settings);
        covered.add(Scenarios.pump(
                () -> Scenarios.covered(6, first, second, third), first, second, third));
        List<Object> sizes = List.of(
                first.owned().size(), second.owned().size(), third.owned().size());
        Scenarios.sendNumbered(topic, 6, 0, 120);
        boolean read = Scenarios.pump(
                () -> first.values.size() + second.values.size() + third.values.size() >= 120,
                first, second, third);
        Set<String> distinct = new TreeSet<>(first.values);
        distinct.addAll(second.values);
        distinct.addAll(third.values);
        List<Object> later = first.rebalances.subList(before, first.rebalances.size());
        List<Object> onThird = new ArrayList<>(later);
        for (Scenarios.Member member : List.of(first, second, third)) {
            member.consumer.commitSync();
        }
        first.close();
        covered.add(Scenarios.pump(() -> Scenarios.covered(6, second, third), second, third));
        second.close();
        covered.add(Scenarios.pump(() -> Scenarios.covered(6, third), third));
        third.close();
        Scenarios.step(assignor,
                "covered", covered, "sizes", sizes, "read", read,
                "count", first.values.size() + second.values.size() + third.values.size(),
                "distinct", distinct.size(), "first saw the third join", onThird);
    }

    private static void resume(Admin admin) throws Exception {
        String topic = Scenarios.topic(admin, "resume", 2);
        Scenarios.sendNumbered(topic, 2, 0, 40);
        try (Scenarios.Member member = new Scenarios.Member(topic, topic)) {
            Scenarios.pump(() -> member.values.size() >= 40, member);
            member.consumer.commitSync();
        }
        Scenarios.sendNumbered(topic, 2, 40, 60);
        try (Scenarios.Member again = new Scenarios.Member(topic, topic)) {
            Scenarios.pump(() -> again.values.size() >= 20, again);
            for (int i = 0; i < 6; i++) {
                again.poll();
            }
            Scenarios.step("resume", "values", again.values);
            TopicPartition partition = new TopicPartition(topic, 0);
            again.consumer.commitSync(Map.of(partition, new OffsetAndMetadata(11, "note")));
            OffsetAndMetadata found = again.consumer.committed(Set.of(partition)).get(partition);
            Scenarios.step("committed", "offset", found.offset(), "metadata", found.metadata());
        }
    }

    private static void statics(Admin admin) throws Exception {
        String topic = Scenarios.topic(admin, "static", 4);
        Object[] one = {"group.instance.id", "one", "session.timeout.ms", 30_000};
        Object[] two = {"group.instance.id", "two", "session.timeout.ms", 30_000};
        try (Scenarios.Member first = new Scenarios.Member(topic, topic, one)) {
            Scenarios.Member second = new Scenarios.Member(topic, topic, two);
            Scenarios.pump(() -> Scenarios.covered(4, first, second), first, second);
            Set<Integer> owned = second.owned();
            int seen = first.rebalances.size();
            second.close();
            try (Scenarios.Member again = new Scenarios.Member(topic, topic, two)) {
                Scenarios.pump(() -> !again.owned().isEmpty(), first, again);
                for (int i = 0; i < 12; i++) {
                    first.poll();
                    again.poll();
                }
                Scenarios.step("static",
                        "before", owned, "after", again.owned(),
                        "covered", Scenarios.covered(4, first, again),
                        "rebalances of the other", first.rebalances.size() - seen);
            }
        }
    }

    private Groups() {}
}
