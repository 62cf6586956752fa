package peer;

import java.io.IOException;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.util.Random;

/** Ports for the peers' listeners. */
final class Ports {
    private static final Random RANDOM = new Random();

    private Ports() {
    }

    /** A port nobody listens on, below those that systems give to outgoing connections: it stays free till we bind. */
    static int free() throws IOException {
        while (true) {
            int port = 12_000 + RANDOM.nextInt(20_000);
            try (ServerSocket probe = new ServerSocket(port, 1, InetAddress.getByName("127.0.0.1"))) {
                return probe.getLocalPort();
            } catch (java.net.BindException taken) {
                continue;
            }
        }
    }
}
