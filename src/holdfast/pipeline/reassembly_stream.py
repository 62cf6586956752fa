"""The public names of reassembly as a stream; ``reassembly.stream`` holds the code."""

from holdfast.pipeline.reassembly.stream import (
    capture_stream,
    is_idle,
    read_streamed,
    reassemble_stream,
    reassembled,
)

__all__ = ["capture_stream", "is_idle", "read_streamed", "reassemble_stream", "reassembled"]
