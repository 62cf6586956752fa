"""Commands that run: a source, a destination, a broker, the simulator.

This room owns options, progress and a clean shutdown. It knows no command that only inspects. Open ``serve`` first.
"""
