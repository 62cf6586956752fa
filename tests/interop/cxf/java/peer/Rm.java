package peer;

import java.util.HashMap;
import java.util.Map;
import org.apache.cxf.Bus;
import org.apache.cxf.BusFactory;
import org.apache.cxf.jaxws.JaxWsServerFactoryBean;
import org.apache.cxf.ws.addressing.WSAddressingFeature;
import org.apache.cxf.ws.rm.RMManager;
import org.apache.cxf.ws.rm.feature.RMFeature;
import org.apache.cxf.ws.rm.manager.AcksPolicyType;
import org.apache.cxf.ws.rm.manager.DeliveryAssuranceType;
import org.apache.cxf.ws.rm.manager.DestinationPolicyType;
import org.apache.cxf.ws.rm.manager.RM10AddressingNamespaceType;
import org.apache.cxf.ws.rm.manager.RetryPolicyType;
import org.apache.cxf.ws.rm.manager.SourcePolicyType;
import org.apache.cxf.ws.rm.persistence.jdbc.RMTxStore;

/** A bus with reliable messaging on it. Both features must be on the bus: the RM runtime makes clients of its own. */
final class Rm {
    private Rm() {
    }

    static String rmNamespace(String version) {
        return version.equals("1.0")
            ? "http://schemas.xmlsoap.org/ws/2005/02/rm" : "http://docs.oasis-open.org/ws-rx/wsrm/200702";
    }

    static String addressingNamespace(String version) {
        return version.equals("2004/08")
            ? "http://schemas.xmlsoap.org/ws/2004/08/addressing" : "http://www.w3.org/2005/08/addressing";
    }

    static String bindingId(String soap) {
        return soap.equals("1.2")
            ? "http://www.w3.org/2003/05/soap/bindings/HTTP/" : "http://schemas.xmlsoap.org/wsdl/soap/http";
    }

    /** A new bus that delivers exactly once and in order, tries for ever, and keeps its state in H2 if told where. */
    static Bus bus(Arguments arguments) {
        Bus bus = BusFactory.newInstance().createBus();
        RMFeature feature = new RMFeature();
        feature.setRMNamespace(rmNamespace(arguments.text("rm")));
        RM10AddressingNamespaceType addressing = new RM10AddressingNamespaceType();
        addressing.setUri(addressingNamespace(arguments.text("wsa")));
        feature.setRM10AddressingNamespace(addressing);
        feature.setDeliveryAssurance(assurance(arguments.flag("ordered")));
        feature.setSourcePolicy(sourcePolicy(arguments.flag("offer")));
        feature.setDestinationPolicy(destinationPolicy(arguments.flag("retry")));
        if (!arguments.text("store").equals("no")) {
            feature.setStore(store(arguments.text("store")));
        }
        new WSAddressingFeature().initialize(bus);
        feature.initialize(bus);
        RMManager manager = bus.getExtension(RMManager.class);
        manager.getConfiguration().setBaseRetransmissionInterval(Long.valueOf(arguments.number("interval")));
        manager.getConfiguration().setExponentialBackoff(false);
        return bus;
    }

    private static DeliveryAssuranceType assurance(boolean ordered) {
        DeliveryAssuranceType assurance = new DeliveryAssuranceType();
        assurance.setExactlyOnce(new DeliveryAssuranceType.ExactlyOnce());
        if (ordered) {
            assurance.setInOrder(new DeliveryAssuranceType.InOrder());
        }
        return assurance;
    }

    private static SourcePolicyType sourcePolicy(boolean offer) {
        SourcePolicyType policy = new SourcePolicyType();
        RetryPolicyType retries = new RetryPolicyType();
        retries.setMaxRetries(-1);
        policy.setRetryPolicy(retries);
        policy.setIncludeOffer(offer);
        return policy;
    }

    private static DestinationPolicyType destinationPolicy(boolean retry) {
        DestinationPolicyType policy = new DestinationPolicyType();
        AcksPolicyType acknowledgements = new AcksPolicyType();
        acknowledgements.setImmediaAcksTimeout(100L);
        policy.setAcksPolicy(acknowledgements);
        if (retry) {
            RetryPolicyType retries = new RetryPolicyType();
            retries.setMaxRetries(-1);
            policy.setRetryPolicy(retries);
        }
        return policy;
    }

    private static RMTxStore store(String path) {
        RMTxStore store = new RMTxStore();
        store.setDriverClassName("org.h2.Driver");
        store.setUrl("jdbc:h2:file:" + path + ";WRITE_DELAY=0");
        store.setUserName("sa");
        store.setPassword("");
        store.setTableExistsState("42S01");
        store.setTableExistsCode(42101);
        store.init();
        return store;
    }

    /** What turns MTOM on, if it is told. */
    static Map<String, Object> attachments(Arguments arguments) {
        Map<String, Object> properties = new HashMap<>();
        properties.put("mtom-enabled", arguments.flag("mtom"));
        return properties;
    }

    /** Serves it with reliable messaging, by a feature of the bus or by a policy. */
    static void publish(Service service, String url, Arguments arguments) {
        boolean hasPolicy = !arguments.text("policy").equals("no");
        Bus bus = hasPolicy ? Described.bus(arguments) : bus(arguments);
        Security.use(bus, arguments, true);
        BusFactory.setThreadDefaultBus(bus);
        JaxWsServerFactoryBean factory = new JaxWsServerFactoryBean();
        factory.setBus(bus);
        factory.setServiceBean(service);
        factory.setBindingId(bindingId(arguments.text("soap")));
        factory.setAddress(url);
        factory.setProperties(attachments(arguments));
        if (hasPolicy) {
            factory.getFeatures().add(Security.policy(arguments));
        }
        factory.create();
    }
}
