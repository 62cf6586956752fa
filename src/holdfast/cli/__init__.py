"""The command line. Thin: every command calls one thing of the rooms below."""
