"""Options that the reader and the writer share: the server's address, access to it, and the conversion of values.

This package owns the names of options and their checks. It knows neither reader nor writer. Open ``server``
first.
"""
