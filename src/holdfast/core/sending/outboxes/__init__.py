"""One outbox: what is known of the messages on their way to one address under one sequence key.

This room owns the state of an outbox. It knows no other outbox. Open ``forwarder_state``.
"""
