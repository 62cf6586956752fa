"""The public name of ``holdfast land`` for programs of ``spark-submit``; ``jobs.land`` holds the code."""

from holdfast.pipeline.jobs.land import land_command

__all__ = ["land_command"]

if __name__ == "__main__":
    land_command()
