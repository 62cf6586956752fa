package peer;

import jakarta.jws.WebService;
import java.io.FileWriter;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.io.Writer;
import org.apache.cxf.Bus;
import org.apache.cxf.BusFactory;
import org.apache.cxf.jaxws.JaxWsServerFactoryBean;

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
        Bus bus = Rm.bus(arguments);
        BusFactory.setThreadDefaultBus(bus);
        int port = arguments.number("port") == 0 ? Rm.freePort() : arguments.number("port");
        String url = "http://127.0.0.1:" + port + "/service";
        JaxWsServerFactoryBean factory = new JaxWsServerFactoryBean();
        factory.setBus(bus);
        factory.setServiceBean(new Service(arguments.text("log"), arguments.number("sleep")));
        factory.setBindingId(Rm.bindingId(arguments.text("soap")));
        factory.setAddress(url);
        factory.create();
        return url;
    }
}
