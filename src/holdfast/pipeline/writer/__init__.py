"""Writing with Spark: rows of a DataFrame become messages of a server's sink, each once.

This package contains the rows' columns and the requests to the sink. The server decides which batch is published. Open
``sink`` first.
"""
