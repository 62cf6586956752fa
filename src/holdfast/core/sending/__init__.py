"""The sending half: outboxes, and the outbound Sequences that carry their messages.

This room owns when a Sequence is created, what is transmitted, and what the end of an exchange says. It knows no
inbound Sequence: ``exchanges`` and ``forwarding_hooks`` say in Protocols what the room asks of others. Open
``outboxes.outbox`` first: one object owns what is sent under one key. ``outbound`` gives every outbox its turns.
"""
