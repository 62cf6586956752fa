package bench;

import jakarta.jws.Oneway;
import jakarta.jws.WebMethod;
import jakarta.jws.WebParam;
import jakarta.jws.WebService;
import jakarta.jws.soap.SOAPBinding;
import jakarta.xml.ws.Action;

/** One one-way operation, that of the interoperability tests' contract. */
@WebService(name = "Contract", targetNamespace = Contract.NAMESPACE)
@SOAPBinding(parameterStyle = SOAPBinding.ParameterStyle.BARE)
public interface Contract {
    String NAMESPACE = "urn:holdfast:interop";

    @Oneway
    @WebMethod(operationName = "notify", action = NAMESPACE + "/notify")
    @Action(input = NAMESPACE + "/notify")
    void tell(@WebParam(name = "notify", targetNamespace = NAMESPACE) Item item);
}
