"""Bodies of messages as columns: XML parsed by a schema, one body at a time or thousands with the same markup at once.

This package owns which text fits which type. It knows no server, offsets or tables. Open ``reader`` first: it decides
what is valid, and ``templates`` computes the same values faster.
"""
