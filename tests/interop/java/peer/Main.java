package peer;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;

/**
 * A live peer, told what to do by lines on its input: {@code TICKET VERB name=value ...}. Each is answered by
 * {@code TICKET ok VALUE} or {@code TICKET failed REASON}, in the order in which they end. It ends with its input.
 *
 * <p>What was begun stays until then. In CXF a bus that is shut down takes up to ten seconds, and with its Jetty it may
 * end one that another bus is just starting: CXF keeps those of all buses together.
 */
public final class Main {
    private static final Map<String, Caller> CALLERS = new ConcurrentHashMap<>();
    private static final PrintStream OUT = System.out;

    private Main() {
    }

    public static void main(String[] ignored) throws Exception {
        System.setOut(System.err);
        ExecutorService workers = Executors.newCachedThreadPool();
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            Arguments arguments = new Arguments(line);
            workers.execute(() -> answer(arguments));
        }
        System.exit(0);
    }

    private static void answer(Arguments arguments) {
        String answer;
        try {
            answer = "ok " + carryOut(arguments);
        } catch (Throwable error) {
            error.printStackTrace();
            answer = "failed " + error.toString().replace('\n', ' ');
        }
        synchronized (OUT) {
            OUT.println(arguments.ticket + " " + answer);
            OUT.flush();
        }
    }

    private static String carryOut(Arguments arguments) throws Exception {
        switch (arguments.verb) {
            case "serve":
                return Service.start(arguments);
            case "connect":
                Caller caller = new Caller(arguments);
                CALLERS.put(arguments.ticket, caller);
                return arguments.ticket;
            case "call":
                return String.valueOf(CALLERS.get(arguments.text("caller")).call(arguments));
            case "settle":
                CALLERS.get(arguments.text("caller")).settle(arguments);
                return "";
            case "close":
                CALLERS.get(arguments.text("caller")).close();
                return "";
            default:
                throw new IllegalArgumentException("no such verb: " + arguments.verb);
        }
    }
}
