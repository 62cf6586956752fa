package peer;

import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.apache.axiom.om.OMElement;
import org.apache.axiom.soap.SOAP11Constants;
import org.apache.axiom.soap.SOAP12Constants;
import org.apache.axis2.Constants;
import org.apache.axis2.addressing.AddressingConstants;
import org.apache.axis2.addressing.EndpointReference;
import org.apache.axis2.client.Options;
import org.apache.axis2.client.ServiceClient;
import org.apache.axis2.client.async.AxisCallback;
import org.apache.axis2.context.ConfigurationContext;
import org.apache.axis2.context.MessageContext;
import org.apache.sandesha2.Sandesha2Constants;
import org.apache.sandesha2.client.SandeshaClient;
import org.apache.sandesha2.client.SandeshaClientConstants;

/** A client of the contract with reliable messaging, as a program would use it. */
final class Caller {
    private final ServiceClient client;
    private final Options options = new Options();
    private final String key;

    Caller(Arguments arguments) throws Exception {
        key = arguments.text("key");
        ConfigurationContext context = Rm.context(Ports.free(), arguments);
        client = new ServiceClient(context, null);
        client.setOptions(options);
        client.engageModule("addressing");
        client.engageModule("sandesha2");
        boolean is10 = arguments.text("rm").equals("1.0");
        options.setTo(new EndpointReference(arguments.text("url")));
        options.setSoapVersionURI(arguments.text("soap").equals("1.2")
            ? SOAP12Constants.SOAP_ENVELOPE_NAMESPACE_URI : SOAP11Constants.SOAP_ENVELOPE_NAMESPACE_URI);
        options.setProperty(AddressingConstants.WS_ADDRESSING_VERSION, arguments.text("wsa").equals("2004/08")
            ? AddressingConstants.Submission.WSA_NAMESPACE : AddressingConstants.Final.WSA_NAMESPACE);
        options.setProperty(SandeshaClientConstants.RM_SPEC_VERSION,
            is10 ? Sandesha2Constants.SPEC_VERSIONS.v1_0 : Sandesha2Constants.SPEC_VERSIONS.v1_1);
        options.setProperty(SandeshaClientConstants.SEQUENCE_KEY, arguments.ticket);
        options.setTimeOutInMilliSeconds(TimeUnit.MINUTES.toMillis(10));
        if (arguments.flag("addressed")) {
            options.setTransportInProtocol(Constants.TRANSPORT_HTTP);
            options.setUseSeparateListener(true);
        } else if (!is10 && !arguments.flag("polls")) {
            // Without MakeConnection, Sandesha2 1.6.2 cannot write the Offer of an anonymous client unless it is told this.
            options.setProperty(SandeshaClientConstants.OFFERED_ENDPOINT,
                new EndpointReference(AddressingConstants.Final.WSA_ANONYMOUS_URL));
        }
    }

    /**
     * Makes the calls numbered {@code from} to {@code to}, one after the other.
     *
     * @return 0: it loses no reply
     */
    int call(Arguments arguments) throws Exception {
        String operation = arguments.text("operation");
        options.setAction(Contract.NAMESPACE + "/" + operation);
        int last = arguments.number("to");
        for (int number = arguments.number("from"); number <= last; number++) {
            if (number == last && arguments.flag("last")) {
                options.setProperty(SandeshaClientConstants.LAST_MESSAGE, Constants.VALUE_TRUE);
            }
            OMElement element = Xml.of(operation, Item.of(key, number));
            if (operation.equals("notify")) {
                client.fireAndForget(element);
                continue;
            }
            Item answer = ask(element);
            if (!answer.equals(key, number)) {
                throw new IllegalStateException("the reply to " + number + " is another's: "
                    + answer.key + " " + answer.number + " " + answer.body);
            }
        }
        return 0;
    }


    /** Not {@code sendReceive}, which gives back null if the reply comes to the listener in the wrong moment. */
    private Item ask(OMElement element) throws Exception {
        CompletableFuture<Item> answer = new CompletableFuture<>();
        client.sendReceiveNonBlocking(element, new AxisCallback() {
            @Override
            public void onMessage(MessageContext context) {
                try {
                    answer.complete(Xml.item(context.getEnvelope().getBody().getFirstElement()));
                } catch (RuntimeException error) {
                    answer.completeExceptionally(error);
                }
            }

            @Override
            public void onFault(MessageContext context) {
                answer.completeExceptionally(
                    new IllegalStateException(context.getEnvelope().getBody().getFault().getReason().getText()));
            }

            @Override
            public void onError(Exception error) {
                answer.completeExceptionally(error);
            }

            @Override
            public void onComplete() {
                answer.completeExceptionally(new IllegalStateException("no reply came"));
            }
        });
        return answer.get(10, TimeUnit.MINUTES);
    }

    /** Returns once every message is acknowledged and the Sequence is ended. */
    void settle(Arguments arguments) throws Exception {
        SandeshaClient.waitUntilSequenceCompleted(client, TimeUnit.SECONDS.toMillis(arguments.number("seconds")));
    }

    /** Closes its Sequence, whatever is acknowledged, and ends it. */
    void close() throws Exception {
        SandeshaClient.closeSequence(client);
        SandeshaClient.terminateSequence(client);
    }
}
