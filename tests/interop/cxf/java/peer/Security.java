package peer;

import java.util.Map;
import javax.security.auth.callback.Callback;
import javax.security.auth.callback.CallbackHandler;
import org.apache.cxf.Bus;
import org.apache.cxf.ws.security.wss4j.WSS4JInInterceptor;
import org.apache.cxf.ws.security.wss4j.WSS4JOutInterceptor;
import org.apache.wss4j.common.ext.WSPasswordCallback;
import org.apache.wss4j.dom.WSConstants;
import org.apache.wss4j.dom.handler.WSHandlerConstants;

/** WSS4J on a bus: UsernameToken and Timestamp of the user alice, whose password is "secret". */
final class Security {
    private Security() {
    }

    /** Lets the bus of a client send them, and that of a service demand them, unless {@code security=no}. */
    static void use(Bus bus, Arguments arguments, boolean isService) {
        String kind = arguments.text("security");
        if (kind.equals("no")) {
            return;
        }
        CallbackHandler passwords = callbacks -> {
            for (Callback callback : callbacks) {
                ((WSPasswordCallback) callback).setPassword("secret");
            }
        };
        Map<String, Object> settings = Map.of(
            WSHandlerConstants.ACTION, WSHandlerConstants.TIMESTAMP + " " + WSHandlerConstants.USERNAME_TOKEN,
            WSHandlerConstants.USER, arguments.text("user"),
            WSHandlerConstants.PASSWORD_TYPE, kind.equals("digest") ? WSConstants.PW_DIGEST : WSConstants.PW_TEXT,
            WSHandlerConstants.PW_CALLBACK_REF, passwords);
        if (isService) {
            bus.getInInterceptors().add(new WSS4JInInterceptor(settings));
        } else {
            bus.getOutInterceptors().add(new WSS4JOutInterceptor(settings));
        }
    }
}
