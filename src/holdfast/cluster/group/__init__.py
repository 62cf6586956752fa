"""The nodes of a cluster as a consumer group of Kafka: who owns which partition, and until when a node may act.

This room owns the membership of a node in a cluster on Kafka. It knows no message and no rows of a database.
Open ``membership`` first, which decides; ``agent`` talks to Kafka and to the supervisor.
"""
