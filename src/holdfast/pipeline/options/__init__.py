"""Options that the reader and the writer share: where the server is, how to reach it, and how texts become values.

This room owns the names of options and their checks. It knows neither reader nor writer. Open ``server`` first.
"""
