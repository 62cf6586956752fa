"""The table of a paper of 2005, measured again: ``python -m bench.paper``. It has no pass or fail."""
