import java.util.Scanner;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.common.metrics.MetricConfig;
import org.apache.kafka.common.metrics.stats.Rate;

/**
 * Prints for how long Kafka would throttle a client, in milliseconds, one line per request.
 *
 * <p>Argument: the quota per second. The input has one request per line: the time in milliseconds,
 * and how much it used. The rate is Kafka's own class; the formula and the numbers are those with
 * which its brokers use it.
 */
public final class Rates {
    static final int SAMPLES = 11;

    public static void main(String[] arguments) {
        double quota = Double.parseDouble(arguments[0]);
        MetricConfig config = new MetricConfig().samples(SAMPLES).timeWindow(1, TimeUnit.SECONDS);
        Rate rate = new Rate();
        try (Scanner input = new Scanner(System.in)) {
            while (input.hasNext()) {
                long now = input.nextLong();
                rate.record(config, input.nextDouble(), now);
                double used = rate.measure(config, now);
                double over = (used - quota) / quota * rate.windowSize(config, now);
                System.out.println(Math.round(Math.max(0, over)));
            }
        }
    }
}
