package peer;

import java.io.IOException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import org.apache.cxf.Bus;
import org.apache.cxf.BusFactory;
import org.apache.cxf.endpoint.Client;
import org.apache.cxf.endpoint.ClientImpl;
import org.apache.cxf.frontend.ClientProxy;
import org.apache.cxf.jaxws.JaxWsProxyFactoryBean;
import org.apache.cxf.transport.http.HTTPConduit;
import org.apache.cxf.transports.http.configuration.HTTPClientPolicy;
import org.apache.cxf.ws.rm.RMException;
import org.apache.cxf.ws.rm.RMManager;

/** A client of the contract with reliable messaging, as a program would use it. */
final class Caller {
    /** The newest caller, whose bus and decoupled endpoint the next one uses too if it is told to. */
    private static Caller newest;

    private final Bus bus;
    private final Client client;
    private final Contract contract;
    private final String key;
    private final String decoupledUrl;
    private final int size;
    private boolean established;

    Caller(Arguments arguments) throws Exception {
        boolean isBeside = arguments.flag("beside");
        boolean isDescribed = !arguments.text("wsdl").equals("no");
        if (isDescribed) {
            bus = Described.bus(arguments);
        } else {
            bus = isBeside ? newest.bus : Rm.bus(arguments);
        }
        if (!isBeside) {
            Security.use(bus, arguments, false);
        }
        BusFactory.setThreadDefaultBus(bus);
        key = arguments.text("key");
        size = arguments.number("bytes");
        if (isDescribed) {
            Described described = Described.read(arguments.text("wsdl"));
            contract = described;
            client = described.client();
        } else {
            contract = proxy(arguments);
            client = ClientProxy.getClient(contract);
        }
        client.getRequestContext().put(RMManager.WSRM_VERSION_PROPERTY, Rm.rmNamespace(arguments.text("rm")));
        client.getRequestContext()
            .put(RMManager.WSRM_WSA_VERSION_PROPERTY, Rm.addressingNamespace(arguments.text("wsa")));
        client.getRequestContext().put(ClientImpl.SYNC_TIMEOUT, TimeUnit.MINUTES.toMillis(10));
        HTTPClientPolicy policy = new HTTPClientPolicy();
        if (arguments.flag("decoupled")) {
            decoupledUrl = isBeside ? newest.decoupledUrl : "http://127.0.0.1:" + Ports.free() + "/decoupled";
            policy.setDecoupledEndpoint(decoupledUrl);
        } else {
            decoupledUrl = "";
        }
        ((HTTPConduit) client.getConduit()).setClient(policy);
        newest = this;
    }

    private Contract proxy(Arguments arguments) {
        JaxWsProxyFactoryBean factory = new JaxWsProxyFactoryBean();
        factory.setBus(bus);
        factory.setServiceClass(Contract.class);
        factory.setBindingId(Rm.bindingId(arguments.text("soap")));
        factory.setAddress(arguments.text("url"));
        factory.setProperties(Rm.attachments(arguments));
        return factory.create(Contract.class);
    }

    /**
     * Makes the calls numbered {@code from} to {@code to}, one after the other.
     *
     * <p>CXF throws when CreateSequence gets no answer, and does not try it again; the next call does. So the first
     * call is repeated until it comes through: before there is a Sequence nothing has been sent.
     *
     * @return how many replies CXF lost itself, see {@link #isOvertaken}; the others came and were the right ones
     */
    int call(Arguments arguments) throws Exception {
        BusFactory.setThreadDefaultBus(bus);
        int last = arguments.number("to");
        int overtaken = 0;
        for (int number = arguments.number("from"); number <= last; number++) {
            if (number == last && arguments.flag("last")) {
                client.getRequestContext().put(RMManager.WSRM_LAST_MESSAGE_PROPERTY, Boolean.TRUE);
            }
            Item item = Item.of(key, number);
            item.data = size > 0 ? Item.dataOf(size) : null;
            overtaken += callOnce(arguments.text("operation"), item);
        }
        return overtaken;
    }

    private int callOnce(String operation, Item item) throws Exception {
        while (true) {
            try {
                if (operation.equals("notify")) {
                    contract.tell(item);
                } else {
                    Item answer = contract.ask(item);
                    boolean isWhole = (answer.data == null ? 0 : answer.data.length) == size;
                    if (!isWhole || !answer.equals(item.key, item.number)) {
                        throw new IllegalStateException("the reply to " + item.number + " is another's: "
                            + answer.key + " " + answer.number + " " + answer.body);
                    }
                }
                established = true;
                return 0;
            } catch (Exception error) {
                boolean isAboutTheSequence = isCausedBy(error, RMException.class);
                boolean isLost = isLostByCxf(error);
                if (!isAboutTheSequence && (isOvertaken(error) || isLost) || established && isLost) {
                    established = true;
                    return 1;
                }
                boolean isUnanswered = isCausedBy(error, IOException.class) || isOvertaken(error);
                if (established || !isAboutTheSequence || !isUnanswered) {
                    throw error;
                }
            }
        }
    }

    /**
     * Whether a reply came to the decoupled endpoint before CXF had read the 202 that came first: then it takes the
     * empty 202 for the reply, and the call fails.
     */
    private boolean isOvertaken(Throwable error) {
        return !decoupledUrl.isEmpty() && isCausedBy(error, ClientImpl.IllegalEmptyResponseException.class);
    }

    /**
     * Whether CXF lost the reply after it had sent the request, which it still has and sends again.
     *
     * <p>A reply at the decoupled endpoint can bring the acknowledgement of the last message. CXF ends the Sequence
     * before it hands the reply over; if the answer to CloseSequence or TerminateSequence overtakes its 202, the call
     * fails. It also fails at times when the request's 202 was lost: "Could not send Message".
     */
    private boolean isLostByCxf(Throwable error) {
        String reason = String.valueOf(error.getMessage());
        return !decoupledUrl.isEmpty()
            && (reason.startsWith("Failed to send RM protocol message") || reason.equals("Could not send Message."));
    }

    private static boolean isCausedBy(Throwable error, Class<? extends Throwable> kind) {
        for (Throwable cause = error; cause != null; cause = cause.getCause()) {
            if (kind.isInstance(cause)) {
                return true;
            }
        }
        return false;
    }

    /** Returns once every message is acknowledged. */
    void settle(Arguments arguments) throws Exception {
        long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(arguments.number("seconds"));
        RMManager manager = bus.getExtension(RMManager.class);
        while (!manager.getRetransmissionQueue().isEmpty()) {
            if (System.nanoTime() > deadline) {
                throw new TimeoutException(manager.getRetransmissionQueue().countUnacknowledged() + " unacknowledged");
            }
            Thread.sleep(10);
        }
    }

    /** Ends its Sequence as a program does that ends, whatever is acknowledged. */
    void close() {
        bus.shutdown(true);
    }
}
