package bench;

import jakarta.xml.bind.annotation.XmlAccessType;
import jakarta.xml.bind.annotation.XmlAccessorType;
import jakarta.xml.bind.annotation.XmlElement;
import jakarta.xml.bind.annotation.XmlType;

/** What a message carries. */
@XmlAccessorType(XmlAccessType.FIELD)
@XmlType(name = "Item", namespace = Contract.NAMESPACE, propOrder = {"key", "number", "body"})
public class Item {
    @XmlElement(namespace = Contract.NAMESPACE, required = true)
    public String key;

    @XmlElement(namespace = Contract.NAMESPACE, required = true)
    public int number;

    @XmlElement(namespace = Contract.NAMESPACE, required = true)
    public String body;
}
