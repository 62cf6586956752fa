package peer;

import java.security.KeyStoreException;
import java.security.cert.X509Certificate;
import java.time.Instant;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import javax.security.auth.callback.Callback;
import javax.security.auth.callback.CallbackHandler;
import org.apache.cxf.Bus;
import org.apache.cxf.helpers.DOMUtils;
import org.apache.cxf.rt.security.SecurityConstants;
import org.apache.cxf.ws.security.wss4j.WSS4JInInterceptor;
import org.apache.cxf.ws.security.wss4j.WSS4JOutInterceptor;
import org.apache.wss4j.common.ext.WSSecurityException;
import org.apache.wss4j.common.saml.SAMLCallback;
import org.apache.wss4j.common.saml.SamlAssertionWrapper;
import org.apache.wss4j.common.saml.bean.AttributeBean;
import org.apache.wss4j.common.saml.bean.AttributeStatementBean;
import org.apache.wss4j.common.saml.bean.AudienceRestrictionBean;
import org.apache.wss4j.common.saml.bean.ConditionsBean;
import org.apache.wss4j.common.saml.bean.KeyInfoBean;
import org.apache.wss4j.common.saml.bean.SubjectBean;
import org.apache.wss4j.common.saml.bean.Version;
import org.apache.wss4j.dom.WSConstants;
import org.apache.wss4j.dom.handler.WSHandlerConstants;
import org.w3c.dom.Element;

/** An assertion that its issuer signed in each message: with a Timestamp alone, or where a policy demands it. */
final class Saml {
    private Saml() {
    }

    /**
     * Lets the bus of a client send an assertion of its own, and that of a service demand one. A service that
     * {@code proves} itself sends one, too: it posts its replies to a broker that demands assertions.
     */
    static void use(Bus bus, Arguments arguments, boolean isService) {
        bus.setProperty(SecurityConstants.AUDIENCE_RESTRICTIONS, arguments.text("audience"));
        if (!arguments.text("security").equals("saml")) {
            bus.setProperty(SecurityConstants.SAML_CALLBACK_HANDLER, assertions(arguments));
            return;
        }
        // A receiver calls an assertion signed if its issuer signed it, and a sender only if the sender signs it, too.
        if (isService) {
            Map<String, Object> demanded = action(WSHandlerConstants.SAML_TOKEN_SIGNED);
            demanded.put("keys", Security.keys(arguments));
            demanded.put(WSHandlerConstants.SIG_VER_PROP_REF_ID, "keys");
            bus.getInInterceptors().add(new WSS4JInInterceptor(demanded));
        }
        if (!isService || arguments.flag("proves")) {
            Map<String, Object> sent = action(WSHandlerConstants.SAML_TOKEN_UNSIGNED);
            sent.put(WSHandlerConstants.SAML_CALLBACK_REF, assertions(arguments));
            bus.getOutInterceptors().add(new WSS4JOutInterceptor(sent));
        }
    }

    private static Map<String, Object> action(String token) {
        Map<String, Object> settings = new HashMap<>();
        settings.put(WSHandlerConstants.ACTION, WSHandlerConstants.TIMESTAMP + " " + token);
        return settings;
    }

    private static CallbackHandler assertions(Arguments arguments) {
        return callbacks -> {
            for (Callback callback : callbacks) {
                SAMLCallback described = (SAMLCallback) callback;
                described.setAssertionElement(signed(arguments));
                // Who vouches for the subject.
                described.setIssuerCrypto(Security.keys(arguments));
                described.setIssuerKeyName("own");
                described.setIssuerKeyPassword("secret");
            }
        };
    }

    /**
     * Signed here: WSS4J 3 itself would digest with SHA-1, whatever the callback says. In a document of its own: CXF's
     * empty one is the same for all threads, and a signature fails if two of them sign at once.
     */
    private static Element signed(Arguments arguments) {
        try {
            SamlAssertionWrapper assertion = new SamlAssertionWrapper(described(arguments));
            assertion.signAssertion("own", "secret", Security.keys(arguments), false, null,
                WSConstants.RSA_SHA256, WSConstants.SHA256);
            return assertion.toDOM(DOMUtils.createDocument());
        } catch (WSSecurityException error) {
            throw new IllegalStateException(error);
        }
    }

    /** The key of the client itself. */
    private static KeyInfoBean key(Arguments arguments) {
        KeyInfoBean key = new KeyInfoBean();
        try {
            key.setCertificate((X509Certificate) Security.keys(arguments).getKeyStore().getCertificate("own"));
        } catch (KeyStoreException error) {
            throw new IllegalStateException(error);
        }
        key.setCertIdentifer(KeyInfoBean.CERT_IDENTIFIER.X509_CERT);
        return key;
    }

    private static SAMLCallback described(Arguments arguments) {
        SAMLCallback callback = new SAMLCallback();
        boolean isVersion2 = arguments.text("saml").equals("2.0");
        callback.setSamlVersion(isVersion2 ? Version.SAML_20 : Version.SAML_11);
        callback.setIssuer(arguments.text("issuer"));
        SubjectBean subject = new SubjectBean();
        subject.setSubjectName(arguments.text("user"));
        subject.setSubjectConfirmationMethod(
            "urn:oasis:names:tc:SAML:" + (isVersion2 ? "2.0" : "1.0") + ":cm:" + arguments.text("method"));
        if (arguments.text("method").equals("holder-of-key")) {
            subject.setKeyInfo(key(arguments));
        }
        callback.setSubject(subject);
        AudienceRestrictionBean audience = new AudienceRestrictionBean();
        audience.setAudienceURIs(List.of(arguments.text("audience")));
        ConditionsBean conditions = new ConditionsBean();
        conditions.setNotBefore(Instant.now());
        conditions.setNotAfter(Instant.now().plusSeconds(600));
        conditions.setAudienceRestrictions(List.of(audience));
        callback.setConditions(conditions);
        AttributeBean role = new AttributeBean();
        role.setSimpleName("role");
        role.setQualifiedName("urn:role");
        role.addAttributeValue("buyer");
        AttributeStatementBean statement = new AttributeStatementBean();
        statement.setSubject(subject);
        statement.setSamlAttributes(List.of(role));
        callback.setAttributeStatementData(List.of(statement));
        return callback;
    }
}
