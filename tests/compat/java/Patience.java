/** Time limits that grow on a busy machine, by the factor in the property "slowness". */
final class Patience {
    private static final double SLOWNESS = Double.parseDouble(System.getProperty("slowness", "1"));

    private Patience() {}

    /** Returns a time limit that is this long on a quiet machine, and longer on a busy one. */
    static int ms(int onQuietMachine) {
        return (int) (onQuietMachine * SLOWNESS);
    }
}
