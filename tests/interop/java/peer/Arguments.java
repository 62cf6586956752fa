package peer;

import java.util.HashMap;
import java.util.Map;

/** One line of input: a number to answer to, a verb, and {@code name=value} words. */
final class Arguments {
    final String ticket;
    final String verb;
    private final Map<String, String> values = new HashMap<>();

    Arguments(String line) {
        String[] words = line.trim().split(" ");
        ticket = words[0];
        verb = words[1];
        for (int index = 2; index < words.length; index++) {
            String[] parts = words[index].split("=", 2);
            values.put(parts[0], parts[1]);
        }
    }

    String text(String name) {
        String value = values.get(name);
        if (value == null) {
            throw new IllegalArgumentException(verb + " needs " + name);
        }
        return value;
    }

    int number(String name) {
        return Integer.parseInt(text(name));
    }

    boolean flag(String name) {
        return text(name).equals("yes");
    }
}
