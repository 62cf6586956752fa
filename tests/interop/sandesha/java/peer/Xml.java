package peer;

import javax.xml.namespace.QName;
import org.apache.axiom.om.OMAbstractFactory;
import org.apache.axiom.om.OMElement;
import org.apache.axiom.om.OMFactory;

/** The contract's item as Axis2's element, and back. */
final class Xml {
    private Xml() {
    }

    static OMElement of(String name, Item item) {
        OMFactory factory = OMAbstractFactory.getOMFactory();
        OMElement element = factory.createOMElement(new QName(Contract.NAMESPACE, name, "t"));
        add(element, "key", item.key);
        add(element, "number", String.valueOf(item.number));
        add(element, "body", item.body);
        return element;
    }

    private static void add(OMElement element, String name, String text) {
        OMElement child = element.getOMFactory().createOMElement(new QName(Contract.NAMESPACE, name, "t"), element);
        child.setText(text);
    }

    static Item item(OMElement element) {
        Item item = new Item();
        item.key = text(element, "key");
        item.number = Integer.parseInt(text(element, "number"));
        item.body = text(element, "body");
        return item;
    }

    private static String text(OMElement element, String name) {
        return element.getFirstChildWithName(new QName(Contract.NAMESPACE, name)).getText();
    }
}
