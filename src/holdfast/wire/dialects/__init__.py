"""The dialects of WS-ReliableMessaging: the differences between the versions.

This package owns the names and shapes of each version. It knows no XML tree. Open ``dialect`` first; ``versions`` is
the table of all dialects.
"""
