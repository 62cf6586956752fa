"""Options that the reader and the writer share: the server's address, access to it, and the conversion of values.

This package defines the names of options and their checks. It depends on neither reader nor writer. Open ``server``
first.
"""
