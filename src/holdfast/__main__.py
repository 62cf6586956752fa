"""``python -m holdfast``: the command line where its script is not on the path."""

from __future__ import annotations

from holdfast.cli.main import main

main()
