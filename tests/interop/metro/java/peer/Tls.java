package peer;

import com.sun.net.httpserver.HttpContext;
import com.sun.net.httpserver.HttpsConfigurator;
import com.sun.net.httpserver.HttpsServer;
import java.io.FileInputStream;
import java.io.IOException;
import java.io.InputStream;
import java.net.InetSocketAddress;
import java.net.URI;
import java.security.GeneralSecurityException;
import java.security.KeyStore;
import java.security.cert.CertificateFactory;
import java.util.concurrent.Executors;
import javax.net.ssl.HttpsURLConnection;
import javax.net.ssl.KeyManagerFactory;
import javax.net.ssl.SSLContext;
import javax.net.ssl.TrustManagerFactory;

/** https for Metro's client and its service. */
final class Tls {
    private static final char[] PASSWORD = "changeit".toCharArray();

    private Tls() {
    }

    /** Lets all clients of this process trust an authority. Metro's RM sends its own messages with another client. */
    static void trust(String certificate) throws GeneralSecurityException, IOException {
        KeyStore store = KeyStore.getInstance("PKCS12");
        store.load(null, null);
        try (InputStream file = new FileInputStream(certificate)) {
            store.setCertificateEntry("authority", CertificateFactory.getInstance("X.509").generateCertificate(file));
        }
        TrustManagerFactory managers = TrustManagerFactory.getInstance(TrustManagerFactory.getDefaultAlgorithm());
        managers.init(store);
        SSLContext context = SSLContext.getInstance("TLS");
        context.init(null, managers.getTrustManagers(), null);
        HttpsURLConnection.setDefaultSSLSocketFactory(context.getSocketFactory());
    }

    /** A context at the port and path of a URL, with the key in a file. */
    static HttpContext serve(String url, String keys) {
        try {
            KeyStore store = KeyStore.getInstance("PKCS12");
            try (InputStream file = new FileInputStream(keys)) {
                store.load(file, PASSWORD);
            }
            KeyManagerFactory managers = KeyManagerFactory.getInstance(KeyManagerFactory.getDefaultAlgorithm());
            managers.init(store, PASSWORD);
            SSLContext context = SSLContext.getInstance("TLS");
            context.init(managers.getKeyManagers(), null, null);
            URI address = URI.create(url);
            HttpsServer server = HttpsServer.create(new InetSocketAddress(address.getHost(), address.getPort()), 0);
            server.setHttpsConfigurator(new HttpsConfigurator(context));
            server.setExecutor(Executors.newCachedThreadPool());
            HttpContext served = server.createContext(address.getPath());
            server.start();
            return served;
        } catch (GeneralSecurityException | IOException error) {
            throw new IllegalStateException(error);
        }
    }
}
