"""A store in a Kafka topic: one partition of the topic is its log, and a local RocksDB is a cache of that log.

This room owns the rules of the log (``frames``, ``replay``, ``owner`` and ``sweep``, which need no Kafka), and the
cache. It knows no protocol rules. Open ``owner`` first, then ``store``.
"""
