package peer;

import com.sun.xml.ws.rx.rm.api.ReliableMessagingFeature.DeliveryAssurance;
import com.sun.xml.ws.rx.rm.api.ReliableMessagingFeatureBuilder;
import com.sun.xml.ws.rx.rm.api.RmProtocolVersion;
import com.sun.xml.ws.rx.mc.api.MakeConnectionSupportedFeature;
import jakarta.xml.ws.Endpoint;
import jakarta.xml.ws.WebServiceFeature;
import jakarta.xml.ws.soap.AddressingFeature;
import jakarta.xml.ws.soap.MTOMFeature;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import javax.xml.namespace.QName;
import javax.xml.transform.stream.StreamSource;

/** The features by which Metro speaks reliable messaging: WS-Addressing 2005/08, exactly once. */
final class Rm {
    private Rm() {
    }

    static WebServiceFeature[] features(Arguments arguments) {
        boolean is10 = arguments.text("rm").equals("1.0");
        ReliableMessagingFeatureBuilder builder = new ReliableMessagingFeatureBuilder(
            is10 ? RmProtocolVersion.WSRM200502 : RmProtocolVersion.WSRM200702)
            .deliveryAssurance(DeliveryAssurance.EXACTLY_ONCE)
            .messageRetransmissionInterval(arguments.number("interval"))
            .ackRequestTransmissionInterval(arguments.number("asks"))
            .maxRmSessionControlMessageResendAttempts(30)
            .closeSequenceOperationTimeout(1_000); // an anonymous client waits in vain for the end of what it offered
        if (arguments.flag("ordered")) {
            builder = builder.enableOrderedDelivery();
        }
        List<WebServiceFeature> features = new ArrayList<>(List.of(new AddressingFeature(true, true), builder.build()));
        if (arguments.flag("polls")) {
            features.add(new MakeConnectionSupportedFeature());
        }
        if (arguments.flag("mtom")) {
            features.add(new MTOMFeature(0));
        }
        return features.toArray(new WebServiceFeature[0]);
    }

    static String bindingId(String soap) {
        return soap.equals("1.2")
            ? "http://www.w3.org/2003/05/soap/bindings/HTTP/" : "http://schemas.xmlsoap.org/wsdl/soap/http";
    }

    static String port(Arguments arguments) {
        return arguments.text("soap").equals("1.2") ? "Soap12" : "Soap11";
    }

    /** Serves it with reliable messaging, and with the policy of a WSDL if there is one. */
    static void publish(Service service, String url, Arguments arguments) {
        Endpoint endpoint = Endpoint.create(bindingId(arguments.text("soap")), service, features(arguments));
        if (!arguments.text("policy").equals("no")) {
            StreamSource wsdl = new StreamSource(arguments.text("policy"));
            wsdl.setSystemId(arguments.text("policy"));
            endpoint.setMetadata(List.of(wsdl));
            endpoint.setProperties(Map.of(
                Endpoint.WSDL_SERVICE, new QName(Contract.NAMESPACE, "Service"),
                Endpoint.WSDL_PORT, new QName(Contract.NAMESPACE, port(arguments))));
        }
        if (arguments.text("tls").equals("no")) {
            endpoint.publish(url);
        } else {
            endpoint.publish(Tls.serve(url, arguments.text("tls")));
        }
    }
}
