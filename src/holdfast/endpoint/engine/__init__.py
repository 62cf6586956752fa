"""The engine: runs the protocol of the core on an event loop, a store and a commit thread.

This room owns time, the order of commits and reads, and the opening of stores. It knows no HTTP and no envelope. Open
``engine`` first: it carries out the core's effects. The other modules do not know it.
"""
