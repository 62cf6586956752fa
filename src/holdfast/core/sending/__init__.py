"""The sending half: outboxes, and the outbound Sequences that carry their messages.

This room decides when to create a Sequence, which messages to transmit, and what the end of an exchange means. It does
not know inbound Sequences: Protocols in ``composer`` and ``outboxes.hooks`` define what it needs from other rooms. Open
``outboxes.outbox`` first: one object owns all messages under one key. ``outbox_registry`` opens and closes them, and
``outbound`` gives each its turns.
"""
