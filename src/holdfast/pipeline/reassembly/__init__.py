"""Reassembly: recorded traffic put back into Sequences, as a batch or as a stream.

This room owns captures and the tables made of them. It knows no server: ``core.reassembly`` decides what belongs
together. Open ``tables`` first.
"""

from holdfast.pipeline.reassembly.tables import Reassembled, as_capture, capture_of, read_reassembled, reassemble

__all__ = ["Reassembled", "as_capture", "capture_of", "read_reassembled", "reassemble"]
