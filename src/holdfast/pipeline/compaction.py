"""The public names of compaction; ``landing.compaction`` holds the code."""

from holdfast.pipeline.landing.compaction import Compaction, compact

__all__ = ["Compaction", "compact"]
