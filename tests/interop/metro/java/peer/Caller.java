package peer;

import jakarta.xml.ws.BindingProvider;
import java.io.Closeable;
import java.io.IOException;
import java.net.URI;
import javax.xml.namespace.QName;

/** A client of the contract with reliable messaging, as a program would use it. */
final class Caller {
    private final Contract contract;
    private final String key;
    private final int bytes;

    Caller(Arguments arguments) throws Exception {
        key = arguments.text("key");
        if (!arguments.text("tls").equals("no")) {
            Tls.trust(arguments.text("tls"));
        }
        jakarta.xml.ws.Service service = jakarta.xml.ws.Service.create(
            URI.create(arguments.text("wsdl")).toURL(), new QName(Contract.NAMESPACE, "Service"));
        QName port = new QName(Contract.NAMESPACE, Rm.port(arguments));
        bytes = arguments.number("bytes");
        contract = service.getPort(port, Contract.class, Rm.features(arguments));
        ((BindingProvider) contract).getRequestContext()
            .put(BindingProvider.ENDPOINT_ADDRESS_PROPERTY, arguments.text("url"));
    }

    /**
     * Makes the calls numbered {@code from} to {@code to}, one after the other.
     *
     * @return 0: it loses no reply
     */
    int call(Arguments arguments) {
        for (int number = arguments.number("from"); number <= arguments.number("to"); number++) {
            Item item = Item.of(key, number);
            item.data = bytes == 0 ? null : Item.dataOf(bytes);
            if (arguments.text("operation").equals("notify")) {
                contract.tell(item);
                continue;
            }
            Item answer = contract.ask(item);
            if (!answer.equals(item.key, item.number)) {
                throw new IllegalStateException("the reply to " + number + " is another's: "
                    + answer.key + " " + answer.number + " " + answer.body);
            }
        }
        return 0;
    }

    /** Returns once every message is acknowledged and the session is ended. */
    void settle(Arguments arguments) throws IOException {
        close();
    }

    void close() throws IOException {
        ((Closeable) contract).close();
    }
}
