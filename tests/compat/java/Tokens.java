import java.io.FileInputStream;
import java.util.ArrayList;
import java.util.List;
import java.util.Properties;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.CreateDelegationTokenOptions;
import org.apache.kafka.clients.admin.ExpireDelegationTokenOptions;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaFuture;
import org.apache.kafka.common.security.auth.KafkaPrincipal;
import org.apache.kafka.common.security.token.delegation.DelegationToken;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * Creates a delegation token, uses it, and removes it. Prints what happened, one JSON object per
 * step, and never the HMAC. It checks nothing.
 *
 * <p>Arguments: a file of properties, and a topic.
 */
public final class Tokens {
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
        try (Admin admin = Admin.create(config)) {
            KafkaPrincipal bob = new KafkaPrincipal(KafkaPrincipal.USER_TYPE, "bob");
            DelegationToken token = get(admin.createDelegationToken(
                    new CreateDelegationTokenOptions().renewers(List.of(bob))).delegationToken());
            step("create", () -> token.tokenInfo().ownerAsString());
            step("describe", () -> shown(get(admin.describeDelegationToken().delegationTokens()),
                    token));
            for (String mechanism : List.of("SCRAM-SHA-256", "SCRAM-SHA-512")) {
                Properties login = login(config, token, mechanism);
                step("produce " + mechanism, () -> produce(login, topic));
                step("create again " + mechanism, () -> {
                    try (Admin job = Admin.create(login)) {
                        return get(job.createDelegationToken().delegationToken()).toString();
                    }
                });
            }
            step("renew", () -> {
                long until = get(admin.renewDelegationToken(token.hmac()).expiryTimestamp());
                return until >= token.tokenInfo().expiryTimestamp() ? "ok" : "earlier";
            });
            step("expire", () -> {
                get(admin.expireDelegationToken(token.hmac(),
                        new ExpireDelegationTokenOptions().expiryTimePeriodMs(-1))
                        .expiryTimestamp());
                return "ok";
            });
            step("produce afterwards", () -> produce(login(config, token, "SCRAM-SHA-512"), topic));
            step("renew afterwards", () ->
                    get(admin.renewDelegationToken(token.hmac()).expiryTimestamp()).toString());
        }
    }

    static <T> T get(KafkaFuture<T> future) throws Exception {
        return future.get(DEADLINE_MS, TimeUnit.MILLISECONDS);
    }

    static String shown(List<DelegationToken> found, DelegationToken token) {
        List<String> renewers = new ArrayList<>(found.get(0).tokenInfo().renewersAsString());
        return found.size() == 1 && found.get(0).equals(token) ? String.join(" ", renewers) : "other";
    }

    static Properties login(Properties given, DelegationToken token, String mechanism) {
        Properties config = new Properties();
        config.putAll(given);
        config.put("sasl.mechanism", mechanism);
        config.put("sasl.jaas.config",
                "org.apache.kafka.common.security.scram.ScramLoginModule required username=\""
                + token.tokenInfo().tokenId() + "\" password=\"" + token.hmacAsBase64String()
                + "\" tokenauth=\"true\";");
        return config;
    }

    static String produce(Properties config, String topic) throws Exception {
        try (KafkaProducer<String, String> producer =
                new KafkaProducer<>(config, new StringSerializer(), new StringSerializer())) {
            producer.send(new ProducerRecord<>(topic, "by a token"))
                    .get(DEADLINE_MS, TimeUnit.MILLISECONDS);
            return "ok";
        }
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
}
