"""What the processes of a cluster remember together: small tables that all of them read and change.

This room owns the tables, whatever the engine of the cluster is. It does not know what they are for: their users bring
the schema and the statements. Open ``tables`` first; ``engines`` finds them.
"""
