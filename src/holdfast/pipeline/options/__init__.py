"""Options that the reader and the writer share: where the server is, how to reach it, and how texts become values.

This room knows neither of the two. Open ``server`` first.
"""
