"""The table of a paper of 2005, measured again: ``python -m bench.paper``. Nothing here passes or fails."""
