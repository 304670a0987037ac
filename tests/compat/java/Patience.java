/** Time limits that grow with how busy the machine is. The test that starts the program says so. */
final class Patience {
    private static final double SLOWNESS = Double.parseDouble(System.getProperty("slowness", "1"));

    private Patience() {}

    /** So many milliseconds on a quiet machine, and more on a busy one. */
    static int ms(int onQuietMachine) {
        return (int) (onQuietMachine * SLOWNESS);
    }
}
