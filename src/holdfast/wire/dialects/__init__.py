"""The dialects of WS-ReliableMessaging: the differences between the versions.

This package defines the names and shapes of each version. It uses no XML tree. Open ``dialect`` first; ``versions`` is
the table of all dialects.
"""
