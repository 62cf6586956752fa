"""Writing with Spark: rows of a DataFrame become messages of a server's sink, each once.

This room owns the rows' columns and the requests to the sink. It knows no reader and no mediation: the server decides
what is published. Open ``sink`` first.
"""
