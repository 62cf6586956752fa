package peer;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Base64;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * A Kafka client that does what lines of its input say, fields with tabs between them, and ends with its input:
 * create TOPIC PARTITIONS, send TOPIC PARTITION KEY VALUE [NAME VALUE]..., dump TOPIC. Each answers in lines, the last
 * of which is "end". Keys, values and headers are in Base64; "-" is none.
 */
public final class Main {
    private static byte[] bytes(String field) {
        return field.equals("-") ? null : Base64.getDecoder().decode(field);
    }

    private static String field(byte[] value) {
        return value == null ? "-" : Base64.getEncoder().encodeToString(value);
    }

    private static void dump(KafkaConsumer<byte[], byte[]> consumer, String topic) {
        List<TopicPartition> parts = new ArrayList<>();
        consumer.partitionsFor(topic).forEach(one -> parts.add(new TopicPartition(topic, one.partition())));
        consumer.assign(parts);
        consumer.seekToBeginning(parts);
        Map<TopicPartition, Long> ends = consumer.endOffsets(parts);
        while (parts.stream().anyMatch(part -> consumer.position(part) < ends.get(part))) {
            for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofMillis(200))) {
                StringBuilder line = new StringBuilder();
                line.append(record.partition()).append('\t').append(record.offset());
                line.append('\t').append(field(record.key())).append('\t').append(field(record.value()));
                for (Header header : record.headers()) {
                    line.append('\t').append(header.key()).append('\t').append(field(header.value()));
                }
                System.out.println(line);
            }
        }
    }

    public static void main(String[] arguments) throws Exception {
        Properties properties = new Properties();
        properties.setProperty("bootstrap.servers", arguments[0]);
        ByteArraySerializer serializer = new ByteArraySerializer();
        ByteArrayDeserializer deserializer = new ByteArrayDeserializer();
        try (Admin admin = Admin.create(properties);
                KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(properties, serializer, serializer);
                KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(properties, deserializer, deserializer)) {
            BufferedReader input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
            for (String line = input.readLine(); line != null; line = input.readLine()) {
                String[] told = line.split("\t");
                switch (told[0]) {
                    case "create" -> {
                        NewTopic topic = new NewTopic(told[1], Integer.parseInt(told[2]), (short) 1);
                        admin.createTopics(List.of(topic)).all().get();
                    }
                    case "send" -> {
                        Integer part = Integer.valueOf(told[2]);
                        var record = new ProducerRecord<>(told[1], part, bytes(told[3]), bytes(told[4]));
                        for (int place = 5; place < told.length; place += 2) {
                            record.headers().add(told[place], bytes(told[place + 1]));
                        }
                        producer.send(record).get();
                    }
                    case "dump" -> dump(consumer, told[1]);
                    default -> throw new IllegalArgumentException(told[0]);
                }
                System.out.println("end");
            }
        }
    }
}
