"""scripts/demo: Holdfast on real input, through a bad network and kills. Not part of the installed package."""
