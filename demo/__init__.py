"""scripts/demo: Holdfast at work on real input, through a bad network and kills. No part of what is installed."""
