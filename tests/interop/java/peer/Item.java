package peer;

import jakarta.xml.bind.annotation.XmlAccessType;
import jakarta.xml.bind.annotation.XmlAccessorType;
import jakarta.xml.bind.annotation.XmlElement;
import jakarta.xml.bind.annotation.XmlType;

/** What every message of the contract carries. */
@XmlAccessorType(XmlAccessType.FIELD)
@XmlType(name = "Item", namespace = Contract.NAMESPACE, propOrder = {"key", "number", "body"})
public class Item {
    @XmlElement(namespace = Contract.NAMESPACE, required = true)
    public String key;

    @XmlElement(namespace = Contract.NAMESPACE, required = true)
    public int number;

    @XmlElement(namespace = Contract.NAMESPACE, required = true)
    public String body;

    public static Item of(String key, int number) {
        Item item = new Item();
        item.key = key;
        item.number = number;
        item.body = bodyOf(number);
        return item;
    }

    /** A body with everything in it that XML has to escape. */
    public static String bodyOf(int number) {
        return "<" + number + "> & \"quoted\"";
    }

    public boolean equals(String expectedKey, int expectedNumber) {
        return expectedKey.equals(key) && number == expectedNumber && bodyOf(expectedNumber).equals(body);
    }
}
