package peer;

import com.sun.xml.wss.impl.callback.PasswordValidationCallback;

/** Knows one user: alice, with the password secret. Metro lets only this class verify digests. */
public class Users extends PasswordValidationCallback.WsitDigestPasswordValidator {
    @Override
    public void setPassword(PasswordValidationCallback.Request request) {
        PasswordValidationCallback.DigestPasswordRequest digest =
            (PasswordValidationCallback.DigestPasswordRequest) request;
        digest.setPassword(digest.getUsername().equals("alice") ? "secret" : "");
    }

    @Override
    public boolean validate(PasswordValidationCallback.Request request)
            throws PasswordValidationCallback.PasswordValidationException {
        if (request instanceof PasswordValidationCallback.DigestPasswordRequest) {
            return super.validate(request);
        }
        PasswordValidationCallback.PlainTextPasswordRequest plain =
            (PasswordValidationCallback.PlainTextPasswordRequest) request;
        return plain.getUsername().equals("alice") && plain.getPassword().equals("secret");
    }
}
