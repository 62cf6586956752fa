package peer;

import jakarta.jws.Oneway;
import jakarta.jws.WebMethod;
import jakarta.jws.WebParam;
import jakarta.jws.WebResult;
import jakarta.jws.WebService;
import jakarta.jws.soap.SOAPBinding;
import jakarta.xml.ws.Action;

/** The contract of the interoperability tests: one operation of each kind. */
@WebService(name = "Contract", targetNamespace = Contract.NAMESPACE)
@SOAPBinding(parameterStyle = SOAPBinding.ParameterStyle.BARE)
public interface Contract {
    String NAMESPACE = "urn:holdfast:interop";

    @Oneway
    @WebMethod(operationName = "notify", action = NAMESPACE + "/notify")
    @Action(input = NAMESPACE + "/notify")
    void tell(@WebParam(name = "notify", targetNamespace = NAMESPACE) Item item);

    @WebMethod(operationName = "echo", action = NAMESPACE + "/echo")
    @Action(input = NAMESPACE + "/echo", output = NAMESPACE + "/echoResponse")
    @WebResult(name = "echoResponse", targetNamespace = NAMESPACE)
    Item ask(@WebParam(name = "echo", targetNamespace = NAMESPACE) Item item);
}
