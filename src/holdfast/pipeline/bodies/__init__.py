"""Bodies of messages as columns: XML read by a schema, one body at a time or thousands of the same markup at once.

This room owns the rules for which text fits which type. It knows no server, no offsets and no tables. Open ``reader``
first: it decides what is right, and ``templates`` is the faster way to the same values.
"""
