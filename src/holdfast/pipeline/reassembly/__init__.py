"""Reassembly: recorded traffic as Sequences again, in a batch or as a stream.

This package owns captures and the tables made from them. It knows no server. Open ``tables`` first; ``sequence``
decides what belongs together.
"""

from holdfast.pipeline.reassembly.tables import Reassembled, as_capture, capture_of, read_reassembled, reassemble

__all__ = ["Reassembled", "as_capture", "capture_of", "read_reassembled", "reassemble"]
