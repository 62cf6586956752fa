"""The command line: ``holdfast`` and its commands.

This room owns arguments, help, tables and exit codes. It knows no protocol rule: every command calls one thing of the
rooms below. Open ``main`` first; ``running`` has the commands that serve and send, ``inspection`` those that show and
change what a store holds.
"""
