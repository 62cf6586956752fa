"""From bytes to the core's messages: one complete decoder, and two fast paths with the same results.

This package owns the decision which messages are refused, and why. It does not know how envelopes are written. Open
``envelopes`` first; ``fast`` and ``forms`` leave every unknown form to it.
"""
