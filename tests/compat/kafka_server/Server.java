import java.io.FileInputStream;
import java.io.IOException;
import java.io.InputStream;
import java.io.PrintStream;
import java.util.ArrayList;
import java.util.List;
import java.util.Properties;
import kafka.server.KafkaConfig;
import kafka.server.KafkaRaftServer;
import kafka.tools.StorageTool;
import org.apache.kafka.common.utils.Time;

/**
 * Formats the storage if needed and runs Apache Kafka, all in one process. Arguments: CLUSTER-ID
 * PROPERTIES, and features as NAME=LEVEL.
 *
 * <p>Kafka's own start scripts need two processes and report errors to a logger that is not
 * configured here. This one lets exceptions out, and ends when its standard input closes, so that
 * it never outlives the test that started it.
 */
final class Server {
    public static void main(String[] arguments) throws Exception {
        Thread watch = new Thread(Server::endWithInput);
        watch.setDaemon(true);
        watch.start();
        PrintStream said = System.err;
        List<String> format = new ArrayList<>(
                List.of("format", "--ignore-formatted", "-t", arguments[0], "-c", arguments[1]));
        for (int at = 2; at < arguments.length; at++) {
            format.add("--feature");
            format.add(arguments[at]);
        }
        int code = StorageTool.execute(format.toArray(new String[0]), said);
        if (code != 0) {
            throw new IllegalStateException("formatting ended with code " + code);
        }
        Properties properties = new Properties();
        try (InputStream file = new FileInputStream(arguments[1])) {
            properties.load(file);
        }
        KafkaRaftServer server =
                new KafkaRaftServer(KafkaConfig.fromProps(properties, false), Time.SYSTEM);
        Runtime.getRuntime().addShutdownHook(new Thread(() -> {
            server.shutdown();
            // A clean stop by a signal is not a failure, although Java exits with a nonzero code.
            Runtime.getRuntime().halt(0);
        }));
        server.startup();
        System.out.println("ready bootstrap=" + properties.getProperty("listeners"));
        System.out.flush();
        server.awaitShutdown();
    }

    private static void endWithInput() {
        try {
            while (System.in.read() >= 0) {
                // Nothing is ever written here; only the end matters.
            }
        } catch (IOException gone) {
            System.err.println("standard input: " + gone);
        }
        Runtime.getRuntime().halt(3);
    }
}
