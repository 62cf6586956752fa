"""The two endpoints, RM Source and RM Destination: shells on asyncio around the core.

This room owns what the core may not know: time, sockets, threads, the order of commits and answers. It decides nothing
about messages. Open ``engine`` first: it carries out the core's effects. ``source`` and ``destination`` have the public
classes.
"""
