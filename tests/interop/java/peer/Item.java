package peer;

import jakarta.xml.bind.annotation.XmlAccessType;
import jakarta.xml.bind.annotation.XmlAccessorType;
import jakarta.xml.bind.annotation.XmlElement;
import jakarta.xml.bind.annotation.XmlType;

/** What every message of the contract carries. */
@XmlAccessorType(XmlAccessType.FIELD)
@XmlType(name = "Item", namespace = Contract.NAMESPACE, propOrder = {"key", "number", "body", "data"})
public class Item {
    @XmlElement(namespace = Contract.NAMESPACE, required = true)
    public String key;

    @XmlElement(namespace = Contract.NAMESPACE, required = true)
    public int number;

    @XmlElement(namespace = Contract.NAMESPACE, required = true)
    public String body;

    /** Bytes, an attachment under MTOM; null for none. */
    @XmlElement(namespace = Contract.NAMESPACE)
    public byte[] data;

    /** Byte i is 7i mod 256. */
    static byte[] dataOf(int size) {
        byte[] data = new byte[size];
        for (int index = 0; index < size; index++) {
            data[index] = (byte) (7 * index);
        }
        return data;
    }

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
        boolean isWhole = data == null || java.util.Arrays.equals(data, dataOf(data.length));
        return isWhole && expectedKey.equals(key) && number == expectedNumber && bodyOf(expectedNumber).equals(body);
    }
}
