package peer;

import jakarta.jws.WebService;
import java.io.FileWriter;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.io.Writer;

/** The contract as a reliable service: each message delivered is a line of its log before the operation returns. */
@WebService(targetNamespace = Contract.NAMESPACE, endpointInterface = "peer.Contract", serviceName = "Service")
public class Service implements Contract {
    private final Writer log;
    private final int milliseconds;

    private Service(String log, int milliseconds) throws IOException {
        this.log = new FileWriter(log, true);
        this.milliseconds = milliseconds;
    }

    @Override
    public void tell(Item item) {
        record("notify", item);
    }

    @Override
    public Item ask(Item item) {
        record("echo", item);
        try {
            Thread.sleep(milliseconds);
        } catch (InterruptedException error) {
            Thread.currentThread().interrupt();
        }
        return item;
    }

    private synchronized void record(String operation, Item item) {
        boolean whole = item.equals(item.key, item.number);
        try {
            log.write(operation + " " + item.key + " " + item.number + " " + (whole ? "whole" : "damaged") + "\n");
            log.flush();
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        }
    }

    /** Serves, each request after so many milliseconds, at the URL that is returned; port 0 takes a free one. */
    static String start(Arguments arguments) throws IOException {
        int port = arguments.number("port") == 0 ? Ports.free() : arguments.number("port");
        String url = "http://127.0.0.1:" + port + "/services/Service";
        Rm.publish(new Service(arguments.text("log"), arguments.number("sleep")), url, arguments);
        return url;
    }
}
