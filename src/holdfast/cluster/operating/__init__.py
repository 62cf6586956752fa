"""What operators see of a cluster and ask of it, whatever its engine is.

This room owns the description of a cluster. It knows no database and no Kafka: those who read the nodes and partitions
there pass them here. Open ``status`` first; ``engines`` finds who reads.
"""
