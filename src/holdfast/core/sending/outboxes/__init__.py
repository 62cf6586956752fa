"""One outbox: everything about the messages on their way to one address under one sequence key.

This room owns an outbox's records, its states, the Sequence that carries it, and what its peer answers. It knows no
other outbox. Open ``outbox`` first: an outbox has its ``records`` and its ``lifecycle``. ``peer_answers`` handles what
its peer says.
"""
