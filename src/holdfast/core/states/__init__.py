"""State tables of both endpoints, as data. Every change of state follows one of them.

The tables of an inbound and an outbound Sequence follow the non-normative state tables of WS-RM 1.2 (appendix D). A
cell is (action, next state). The code performs the cell's action for an event, and nothing else. An event is the peer's
or ours. If a table has no cell for the peer's event, the peer refers to an unknown Sequence and is answered
accordingly. If it has no cell for our own event (a call, a timer), Holdfast has a bug and raises :class:`NoSuchMove`.

This package owns states, events, actions and cells. It knows no object that has a state. Open ``outbound`` first.
``inbound`` has the tables of the other end, and ``outbox`` and ``poller`` those of objects that outlive a Sequence.
``drawing`` makes the diagrams of the docs (``python -m holdfast.core.states``).
"""
