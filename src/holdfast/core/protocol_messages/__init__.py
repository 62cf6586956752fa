"""RM protocol messages: CreateSequence, CloseSequence, TerminateSequence, their responses, and acknowledgements.

This room owns how a Sequence is granted and ended from either side, and what a peer's word about our Sequences does. It
knows neither handlers nor forwarders. Open ``table`` first: it has one row for each kind of message.
"""
