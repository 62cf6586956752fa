"""Commands that run: a source, a destination, a broker, the simulator.

This room owns options, progress and a clean shutdown. Open ``serve`` first.
"""
