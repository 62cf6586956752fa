package peer;

import java.io.IOException;
import java.io.InputStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.GeneralSecurityException;
import java.security.KeyFactory;
import java.security.KeyStore;
import java.security.PrivateKey;
import java.security.cert.Certificate;
import java.security.cert.CertificateFactory;
import java.security.spec.PKCS8EncodedKeySpec;
import java.util.Base64;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import javax.security.auth.callback.Callback;
import javax.security.auth.callback.CallbackHandler;
import javax.xml.stream.XMLStreamException;
import org.apache.cxf.Bus;
import org.apache.cxf.rt.security.SecurityConstants;
import org.apache.cxf.staxutils.StaxUtils;
import org.apache.cxf.ws.policy.WSPolicyFeature;
import org.apache.cxf.ws.security.tokenstore.MemoryTokenStore;
import org.apache.cxf.ws.security.tokenstore.TokenStore;
import org.apache.cxf.ws.security.wss4j.WSS4JInInterceptor;
import org.apache.cxf.ws.security.wss4j.WSS4JOutInterceptor;
import org.apache.wss4j.common.crypto.Merlin;
import org.apache.wss4j.common.ext.WSPasswordCallback;
import org.apache.wss4j.dom.WSConstants;
import org.apache.wss4j.dom.handler.WSHandlerConstants;

/**
 * WSS4J on a bus: UsernameToken and Timestamp of the user alice, whose password is "secret", or the signature of a
 * certificate.
 */
final class Security {
    private static final String[] ADDRESSING = {
        "Action", "MessageID", "To", "ReplyTo", "FaultTo", "From", "RelatesTo",
    };
    private static final String[] RELIABLE = {"Sequence", "SequenceAcknowledgement", "AckRequested", "SequenceFault"};

    private Security() {
    }

    /** Lets the bus of a client send them, and that of a service demand them, unless {@code security=no}. */
    static void use(Bus bus, Arguments arguments, boolean isService) {
        String kind = arguments.text("security");
        if (kind.equals("no")) {
            return;
        }
        if (!arguments.text("saml").equals("no")) {
            saml(bus, arguments, isService);
        }
        if (kind.equals("policy")) {
            obey(bus, arguments);
            return;
        }
        if (kind.equals("signature") || kind.equals("encryption")) {
            sign(bus, arguments, isService);
            return;
        }
        if (kind.equals("saml")) {
            return;
        }
        Map<String, Object> settings = Map.of(
            WSHandlerConstants.ACTION, WSHandlerConstants.TIMESTAMP + " " + WSHandlerConstants.USERNAME_TOKEN,
            WSHandlerConstants.USER, arguments.text("user"),
            WSHandlerConstants.PASSWORD_TYPE, kind.equals("digest") ? WSConstants.PW_DIGEST : WSConstants.PW_TEXT,
            WSHandlerConstants.PW_CALLBACK_REF, passwords());
        if (isService) {
            bus.getInInterceptors().add(new WSS4JInInterceptor(settings));
        } else {
            bus.getOutInterceptors().add(new WSS4JOutInterceptor(settings));
        }
    }

    /** Saml is compiled only where OpenSAML is. */
    private static void saml(Bus bus, Arguments arguments, boolean isService) {
        try {
            Class.forName("peer.Saml").getDeclaredMethod("use", Bus.class, Arguments.class, boolean.class)
                .invoke(null, bus, arguments, isService);
        } catch (ReflectiveOperationException error) {
            throw new IllegalStateException(error);
        }
    }

    private static CallbackHandler passwords() {
        return callbacks -> {
            for (Callback callback : callbacks) {
                ((WSPasswordCallback) callback).setPassword("secret");
            }
        };
    }

    /** Has keys and a user for whatever the policy of a WSDL demands. */
    private static void obey(Bus bus, Arguments arguments) {
        bus.setProperty(SecurityConstants.SIGNATURE_CRYPTO, keys(arguments));
        bus.setProperty(SecurityConstants.SIGNATURE_USERNAME, "own");
        bus.setProperty(SecurityConstants.ENCRYPT_CRYPTO, keys(arguments));
        bus.setProperty(SecurityConstants.ENCRYPT_USERNAME, "other");
        bus.setProperty(SecurityConstants.USERNAME, arguments.text("user"));
        bus.setProperty(SecurityConstants.CALLBACK_HANDLER, passwords());
        // The RM endpoint reads acknowledgements, and needs the keys of the service's endpoint for that.
        bus.setProperty(TokenStore.class.getName(), new MemoryTokenStore());
    }

    /** The policy of a service, from a file. */
    static WSPolicyFeature policy(Arguments arguments) {
        WSPolicyFeature feature = new WSPolicyFeature();
        try (InputStream file = Files.newInputStream(Path.of(arguments.text("policy")))) {
            feature.setPolicyElements(List.of(StaxUtils.read(file).getDocumentElement()));
        } catch (IOException | XMLStreamException error) {
            throw new IllegalStateException(error);
        }
        return feature;
    }

    /** Signs what leaves, and demands a signature of what comes, faults too; and encrypts it, if told how. */
    private static void sign(Bus bus, Arguments arguments, boolean isService) {
        Map<String, Object> settings = new HashMap<>();
        settings.put(WSHandlerConstants.ACTION, WSHandlerConstants.TIMESTAMP + " " + WSHandlerConstants.SIGNATURE);
        if (arguments.text("security").equals("encryption")) {
            encrypt(settings, arguments, isService);
        }
        settings.put("keys", keys(arguments));
        settings.put(WSHandlerConstants.SIG_PROP_REF_ID, "keys");
        settings.put(WSHandlerConstants.SIG_VER_PROP_REF_ID, "keys");
        settings.put(WSHandlerConstants.SIGNATURE_USER, "own");
        settings.put(WSHandlerConstants.PW_CALLBACK_REF, passwords());
        settings.put(WSHandlerConstants.SIG_KEY_ID, arguments.text("reference"));
        settings.put(WSHandlerConstants.SIG_ALGO, arguments.text("algorithm"));
        settings.put(WSHandlerConstants.SIG_DIGEST_ALGO, WSConstants.SHA256);
        settings.put(WSHandlerConstants.SIGNATURE_PARTS,
            "{Element}{" + WSConstants.WSU_NS + "}Timestamp;{Element}{" + arguments.text("envelope") + "}Body");
        settings.put(WSHandlerConstants.OPTIONAL_SIGNATURE_PARTS,
            parts(Rm.addressingNamespace(arguments.text("wsa")), ADDRESSING)
                + parts(Rm.rmNamespace(arguments.text("rm")), RELIABLE));
        Map<String, Object> requests = new HashMap<>(settings);
        if (!arguments.text("saml").equals("no")) {
            carry(bus, requests, arguments, isService);
        }
        bus.getInInterceptors().add(new WSS4JInInterceptor(isService ? requests : settings));
        bus.getInFaultInterceptors().add(new WSS4JInInterceptor(settings));
        bus.getOutInterceptors().add(new WSS4JOutInterceptor(isService ? settings : requests));
        bus.getOutFaultInterceptors().add(new WSS4JOutInterceptor(settings));
    }

    /**
     * Signs requests with an assertion in them, and encrypts that, too, if it encrypts. If the assertion confirms the
     * key, the signature names the key by it.
     */
    private static void carry(Bus bus, Map<String, Object> settings, Arguments arguments, boolean isService) {
        settings.put(WSHandlerConstants.ACTION, WSHandlerConstants.TIMESTAMP + " "
            + (isService ? WSHandlerConstants.SIGNATURE + " " : "") + WSHandlerConstants.SAML_TOKEN_SIGNED);
        settings.put(WSHandlerConstants.SAML_CALLBACK_REF, bus.getProperty(SecurityConstants.SAML_CALLBACK_HANDLER));
        if (arguments.text("security").equals("encryption")) {
            settings.put(WSHandlerConstants.ACTION, settings.get(WSHandlerConstants.ACTION) + " "
                + WSHandlerConstants.ENCRYPTION);
            settings.put(WSHandlerConstants.ENCRYPTION_PARTS, settings.get(WSHandlerConstants.ENCRYPTION_PARTS)
                + ";{Element}{" + WSConstants.SAML2_NS + "}Assertion");
        }
        if (arguments.text("method").equals("holder-of-key")) {
            String parts = (String) settings.get(WSHandlerConstants.SIGNATURE_PARTS);
            settings.put(WSHandlerConstants.SIGNATURE_PARTS, parts + ";{}{}STRTransform");
        }
    }

    /** Encrypts the content of the Body, before or after it is signed, or the signature, too. */
    private static void encrypt(Map<String, Object> settings, Arguments arguments, boolean isService) {
        boolean first = arguments.text("order").equals("encrypted-first");
        settings.put(WSHandlerConstants.ACTION, WSHandlerConstants.TIMESTAMP + " " + (first
            ? WSHandlerConstants.ENCRYPTION + " " + WSHandlerConstants.SIGNATURE
            : WSHandlerConstants.SIGNATURE + " " + WSHandlerConstants.ENCRYPTION));
        settings.put(WSHandlerConstants.ENC_PROP_REF_ID, "keys");
        settings.put(WSHandlerConstants.DEC_PROP_REF_ID, "keys");
        settings.put(WSHandlerConstants.ENCRYPTION_USER, isService ? WSHandlerConstants.USE_REQ_SIG_CERT : "other");
        settings.put(WSHandlerConstants.ENC_KEY_ID, arguments.text("recipient"));
        settings.put(WSHandlerConstants.ENC_SYM_ALGO, arguments.text("cipher"));
        settings.put(WSHandlerConstants.ENC_KEY_TRANSPORT, WSConstants.KEYTRANSPORT_RSAOAEP);
        String parts = "{Content}{" + arguments.text("envelope") + "}Body";
        if (arguments.text("order").equals("signature-encrypted")) {
            parts += ";{Element}{" + WSConstants.SIG_NS + "}Signature";
        }
        settings.put(WSHandlerConstants.ENCRYPTION_PARTS, parts);
    }

    private static String parts(String namespace, String[] names) {
        StringBuilder parts = new StringBuilder();
        for (String name : names) {
            parts.append("{Element}{").append(namespace).append('}').append(name).append(';');
        }
        return parts.toString();
    }

    /** Its own key, and the certificate of the other side, from files in PEM. */
    static Merlin keys(Arguments arguments) {
        Merlin keys = new Merlin();
        try {
            KeyStore store = KeyStore.getInstance("PKCS12");
            store.load(null, null);
            Certificate own = certificate(arguments.text("certificate"));
            store.setKeyEntry("own", key(arguments.text("private")), "secret".toCharArray(), new Certificate[] {own});
            store.setCertificateEntry("other", certificate(arguments.text("trusted")));
            keys.setKeyStore(store);
        } catch (IOException | GeneralSecurityException error) {
            throw new IllegalStateException(error);
        }
        return keys;
    }

    private static Certificate certificate(String path) throws IOException, GeneralSecurityException {
        try (InputStream file = Files.newInputStream(Path.of(path))) {
            return CertificateFactory.getInstance("X.509").generateCertificate(file);
        }
    }

    private static PrivateKey key(String path) throws IOException, GeneralSecurityException {
        String text = Files.readString(Path.of(path)).replaceAll("-----[A-Z ]+-----|\\s", "");
        PKCS8EncodedKeySpec key = new PKCS8EncodedKeySpec(Base64.getDecoder().decode(text));
        return KeyFactory.getInstance("RSA").generatePrivate(key);
    }
}
