package shop;

import com.sun.xml.ws.rx.rm.api.ReliableMessagingFeatureBuilder;
import com.sun.xml.ws.rx.rm.api.RmProtocolVersion;
import jakarta.jws.WebMethod;
import jakarta.jws.WebService;
import jakarta.xml.ws.Endpoint;
import jakarta.xml.ws.soap.AddressingFeature;
import java.net.ServerSocket;

/** A reliable service of Metro's: arguments are the version, "1.0" or "1.1", and the milliseconds that a call takes. */
@WebService(targetNamespace = "urn:metro", serviceName = "Shop")
public class Shop {
    private final int milliseconds;

    private Shop(int milliseconds) {
        this.milliseconds = milliseconds;
    }

    @WebMethod(action = "urn:metro/ask")
    public String ask(String text) throws InterruptedException {
        Thread.sleep(milliseconds);
        return "re " + text;
    }

    /** Serves until its input ends; its first line of output is the URL. */
    public static void main(String[] arguments) throws Exception {
        int port;
        try (ServerSocket free = new ServerSocket(0)) {
            port = free.getLocalPort();
        }
        RmProtocolVersion version =
                arguments[0].equals("1.0") ? RmProtocolVersion.WSRM200502 : RmProtocolVersion.WSRM200702;
        Endpoint endpoint = Endpoint.create(
                null,
                new Shop(Integer.parseInt(arguments[1])),
                new ReliableMessagingFeatureBuilder(version).build(),
                new AddressingFeature(true, true));
        String url = "http://127.0.0.1:" + port + "/shop";
        endpoint.publish(url);
        System.out.println(url);
        while (System.in.read() >= 0) {
            // it ends with its input
        }
        System.exit(0);
    }
}
