"""The public names of a grid of policies; ``simulation.grid`` holds the code."""

from holdfast.pipeline.simulation.grid import parse_grid

__all__ = ["parse_grid"]
