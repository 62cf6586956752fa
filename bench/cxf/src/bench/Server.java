package bench;

import jakarta.jws.WebService;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.util.concurrent.atomic.AtomicLong;
import java.util.logging.Level;
import java.util.logging.Logger;
import org.apache.cxf.Bus;
import org.apache.cxf.BusFactory;
import org.apache.cxf.jaxws.JaxWsServerFactoryBean;
import org.apache.cxf.ws.addressing.WSAddressingFeature;
import org.apache.cxf.ws.rm.feature.RMFeature;
import org.apache.cxf.ws.rm.manager.DeliveryAssuranceType;
import org.apache.cxf.ws.rm.persistence.jdbc.RMTxStore;

/**
 * A reliable one-way service that counts what it is given, exactly once: {@code Server memory} or {@code Server derby
 * DIRECTORY}. Prints its URL as JSON and serves until the end of its input.
 *
 * <p>Set up as fast as it was seen to run: no order, acknowledgements in every answer, no logging of what is well (a line
 * for every message otherwise).
 */
@WebService(targetNamespace = Contract.NAMESPACE, endpointInterface = "bench.Contract", serviceName = "Service")
public class Server implements Contract {
    private static final Logger LOG = Logger.getLogger("org.apache.cxf"); // held, or its level is forgotten
    private final AtomicLong delivered = new AtomicLong();

    @Override
    public void tell(Item item) {
        delivered.incrementAndGet();
    }

    public static void main(String[] arguments) throws Exception {
        LOG.setLevel(Level.SEVERE);
        Bus bus = BusFactory.getDefaultBus();
        RMFeature reliable = new RMFeature();
        reliable.setRMNamespace("http://docs.oasis-open.org/ws-rx/wsrm/200702");
        DeliveryAssuranceType assurance = new DeliveryAssuranceType();
        assurance.setExactlyOnce(new DeliveryAssuranceType.ExactlyOnce());
        reliable.setDeliveryAssurance(assurance);
        if (arguments[0].equals("derby")) {
            reliable.setStore(derby(arguments[1]));
        }
        new WSAddressingFeature().initialize(bus);
        reliable.initialize(bus);
        int port;
        try (ServerSocket free = new ServerSocket(0, 1, InetAddress.getByName("127.0.0.1"))) {
            port = free.getLocalPort();
        }
        String url = "http://127.0.0.1:" + port + "/service";
        JaxWsServerFactoryBean factory = new JaxWsServerFactoryBean();
        factory.setBus(bus);
        factory.setServiceBean(new Server());
        factory.setAddress(url);
        factory.create();
        System.out.println("{\"url\": \"" + url + "\"}");
        System.out.flush();
        while (System.in.read() >= 0) {
            continue;
        }
        Runtime.getRuntime().halt(0); // a bus that is shut down takes its time
    }

    /** Each commit is synchronous: Derby opens its log so. */
    private static RMTxStore derby(String directory) {
        RMTxStore store = new RMTxStore();
        store.setDriverClassName("org.apache.derby.jdbc.EmbeddedDriver");
        store.setUrl("jdbc:derby:" + directory + ";create=true");
        store.init();
        return store;
    }
}
