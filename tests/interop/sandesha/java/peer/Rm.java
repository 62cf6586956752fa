package peer;

import java.io.File;
import java.io.IOException;
import java.net.URI;
import javax.xml.namespace.QName;
import org.apache.axis2.AxisFault;
import org.apache.axis2.context.ConfigurationContext;
import org.apache.axis2.context.ConfigurationContextFactory;
import org.apache.axis2.context.MessageContext;
import org.apache.axis2.deployment.DeploymentEngine;
import org.apache.axis2.description.AxisModule;
import org.apache.axis2.description.AxisOperation;
import org.apache.axis2.description.AxisService;
import org.apache.axis2.description.InOnlyAxisOperation;
import org.apache.axis2.description.InOutAxisOperation;
import org.apache.axis2.description.Parameter;
import org.apache.axis2.engine.AxisConfiguration;
import org.apache.axis2.engine.ListenerManager;
import org.apache.axis2.engine.MessageReceiver;
import org.apache.axis2.receivers.AbstractInOutMessageReceiver;
import org.apache.sandesha2.Sandesha2Constants;
import org.apache.sandesha2.policy.SandeshaPolicyBean;

/** Axis2 with Sandesha2: exactly once, for ever; MakeConnection on request. */
final class Rm {
    private Rm() {
    }

    /** An Axis2 of its own, which listens at this port once it is asked to. */
    static ConfigurationContext context(int port, Arguments arguments) throws Exception {
        ConfigurationContext context =
            ConfigurationContextFactory.createConfigurationContextFromFileSystem(null, null);
        AxisConfiguration configuration = context.getAxisConfiguration();
        context.setContextRoot("/");
        configuration.getTransportIn("http").addParameter(new Parameter("port", String.valueOf(port)));
        configuration.addParameter("httpFrontendHostUrl", "http://127.0.0.1:" + port);
        for (AxisModule module : modules(configuration)) {
            DeploymentEngine.addNewModule(module, configuration);
            if (module.getModule() != null) {
                module.getModule().init(context, module);
            }
        }
        Parameter policy = configuration.getParameter(Sandesha2Constants.SANDESHA_PROPERTY_BEAN);
        set((SandeshaPolicyBean) policy.getValue(), arguments);
        return context;
    }

    private static void set(SandeshaPolicyBean policy, Arguments arguments) {
        policy.setRetransmissionInterval(arguments.number("interval"));
        policy.setAcknowledgementInterval(100);
        policy.setMaximumRetransmissionCount(-1);
        policy.setInactiveTimeoutInterval(-1, "seconds");
        policy.setInOrder(arguments.flag("ordered"));
        policy.setEnableMakeConnection(arguments.flag("polls"));
        policy.setEnableRMAnonURI(arguments.flag("polls"));
    }

    /** The modules that lie beside Axis2's own jars. */
    private static AxisModule[] modules(AxisConfiguration configuration) throws Exception {
        URI jar = AxisModule.class.getProtectionDomain().getCodeSource().getLocation().toURI();
        File[] files = new File(jar).getParentFile().listFiles((folder, name) -> name.endsWith(".mar"));
        java.util.Arrays.sort(files);
        AxisModule[] modules = new AxisModule[files.length];
        for (int index = 0; index < files.length; index++) {
            modules[index] = DeploymentEngine.buildModule(files[index], configuration);
        }
        return modules;
    }

    static void listen(ConfigurationContext context) throws AxisFault {
        ListenerManager listeners = new ListenerManager();
        listeners.init(context);
        listeners.start();
    }

    /** Serves it with reliable messaging. */
    static void publish(Service service, String url, Arguments arguments) throws IOException {
        try {
            ConfigurationContext context = context(URI.create(url).getPort(), arguments);
            AxisConfiguration configuration = context.getAxisConfiguration();
            AxisService described = new AxisService("Service");
            described.setTargetNamespace(Contract.NAMESPACE);
            add(described, "notify", new InOnlyAxisOperation(), new Told(service));
            add(described, "echo", new InOutAxisOperation(), new Asked(service));
            configuration.addService(described);
            described.engageModule(configuration.getModule("addressing"));
            described.engageModule(configuration.getModule("sandesha2"));
            listen(context);
        } catch (IOException | RuntimeException error) {
            throw error;
        } catch (Exception error) {
            throw new IOException(error);
        }
    }

    private static void add(AxisService service, String name, AxisOperation operation, MessageReceiver receiver) {
        operation.setName(new QName(Contract.NAMESPACE, name));
        operation.setSoapAction(Contract.NAMESPACE + "/" + name);
        operation.setMessageReceiver(receiver);
        if (operation instanceof InOutAxisOperation) {
            operation.setOutputAction(Contract.NAMESPACE + "/" + name + "Response");
        }
        service.addOperation(operation);
        service.mapActionToOperation(Contract.NAMESPACE + "/" + name, operation);
        service.addMessageElementQNameToOperationMapping(new QName(Contract.NAMESPACE, name), operation);
    }

    /** Not an {@code AbstractMessageReceiver}: with Sandesha2 that gives one-way messages to a pool of threads, out of order. */
    private static final class Told implements MessageReceiver {
        private final Service service;

        Told(Service service) {
            this.service = service;
        }

        @Override
        public void receive(MessageContext told) {
            service.tell(Xml.item(told.getEnvelope().getBody().getFirstElement()));
        }
    }

    private static final class Asked extends AbstractInOutMessageReceiver {
        private final Service service;

        Asked(Service service) {
            this.service = service;
        }

        @Override
        public void invokeBusinessLogic(MessageContext asked, MessageContext answer) throws AxisFault {
            Item item = service.ask(Xml.item(asked.getEnvelope().getBody().getFirstElement()));
            answer.setEnvelope(getSOAPFactory(asked).getDefaultEnvelope());
            answer.getEnvelope().getBody().addChild(Xml.of("echoResponse", item));
        }
    }
}
