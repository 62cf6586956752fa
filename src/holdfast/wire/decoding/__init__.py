"""From bytes to the core's messages: one complete decoder, and two fast paths with the same results.

This package decides which messages are refused, and why. It does not depend on how envelopes are written. Open
``envelopes`` first; ``fast`` and ``forms`` leave every unknown form to it.
"""
