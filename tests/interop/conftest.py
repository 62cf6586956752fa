"""Lets the interop tests import the scripted peers that lie beside them (``from wcf.scripted_client import ...``)."""

from __future__ import annotations

import sys
from pathlib import Path

_HERE = str(Path(__file__).resolve().parent)
if _HERE not in sys.path:
    sys.path.insert(0, _HERE)
