"""Print the diagram of every state table."""

from __future__ import annotations

from holdfast.core.states.drawing import TABLES, diagram

for drawn in TABLES:
    print(f"%% {drawn}\n{diagram(drawn)}")
