"""The dialects of WS-ReliableMessaging: what differs from version to version.

This room owns the names and shapes of each version. It knows no XML tree and no message but by name. Open ``dialect``
first; ``versions`` is the table of them all.
"""
