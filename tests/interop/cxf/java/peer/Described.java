package peer;

import jakarta.xml.bind.JAXBContext;
import jakarta.xml.bind.JAXBElement;
import jakarta.xml.bind.JAXBException;
import jakarta.xml.bind.util.JAXBSource;
import jakarta.xml.ws.Dispatch;
import jakarta.xml.ws.Service;
import jakarta.xml.ws.handler.MessageContext;
import java.net.URI;
import java.util.Iterator;
import javax.xml.namespace.QName;
import javax.xml.transform.Source;
import org.apache.cxf.Bus;
import org.apache.cxf.BusFactory;
import org.apache.cxf.endpoint.Client;
import org.apache.cxf.jaxws.DispatchImpl;
import org.apache.cxf.ws.rm.RMConfiguration;
import org.apache.cxf.ws.rm.RMManager;

/**
 * The contract as a client calls it that knows a service's WSDL only: the address, the actions and the policy are from
 * there. Nothing but the WSDL turns reliable messaging on.
 */
final class Described implements Contract {
    private final JAXBContext items;
    private final Dispatch<Source> dispatch;
    private final QName port;

    private Described(Dispatch<Source> dispatch, QName port) throws JAXBException {
        this.items = JAXBContext.newInstance(Item.class);
        this.dispatch = dispatch;
        this.port = port;
    }

    /** A bus that has only what a policy asks for. */
    static Bus bus(Arguments arguments) {
        Bus bus = BusFactory.newInstance().createBus();
        RMConfiguration configuration = bus.getExtension(RMManager.class).getConfiguration();
        configuration.setBaseRetransmissionInterval(Long.valueOf(arguments.number("interval")));
        // The policy of RM 1.0 says nothing of this.
        configuration.setDeliveryAssurance(RMConfiguration.DeliveryAssurance.EXACTLY_ONCE);
        configuration.setInOrder(arguments.flag("ordered"));
        return bus;
    }

    /** Reads a WSDL with one service, which has one port. */
    static Described read(String url) throws Exception {
        org.apache.cxf.service.model.ServiceInfo found = new org.apache.cxf.wsdl11.WSDLServiceFactory(
            BusFactory.getThreadDefaultBus(), url).create().getServiceInfos().get(0);
        Service service = Service.create(URI.create(url).toURL(), found.getName());
        Iterator<QName> ports = service.getPorts();
        QName port = ports.next();
        return new Described(service.createDispatch(port, Source.class, Service.Mode.PAYLOAD), port);
    }

    Client client() {
        return ((DispatchImpl<Source>) dispatch).getClient();
    }

    @Override
    public void tell(Item item) {
        dispatch.invokeOneWay(body("notify", item));
    }

    @Override
    public Item ask(Item item) {
        try {
            return items.createUnmarshaller().unmarshal(dispatch.invoke(body("echo", item)), Item.class).getValue();
        } catch (JAXBException error) {
            throw new IllegalStateException(error);
        }
    }

    private Source body(String operation, Item item) {
        dispatch.getRequestContext()
            .put(MessageContext.WSDL_OPERATION, new QName(port.getNamespaceURI(), operation));
        try {
            return new JAXBSource(items, new JAXBElement<>(new QName(NAMESPACE, operation), Item.class, item));
        } catch (JAXBException error) {
            throw new IllegalStateException(error);
        }
    }
}
