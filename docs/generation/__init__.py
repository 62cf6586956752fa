"""The parts of pages that are generated from the code, a module for each kind. ``docs/generate.py`` writes the pages.

Where possible, these modules read sources instead of importing them, so that a page is the same on every machine.
"""

from __future__ import annotations

from pathlib import Path

DOCS = Path(__file__).resolve().parent.parent
SOURCES = DOCS.parent / "src" / "holdfast"
DRAWN = "<!-- Drawn from the code by docs/generate.py; do not edit. -->"
