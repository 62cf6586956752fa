"""NodeProof: how the nodes of a cluster prove to each other that they have its secret, which is never sent.

Each request has a stamp (``request_freshness``) and a keyed digest of everything in it. The answer has a digest of the
same stamp and of everything in the answer. So both sides know that the other has the secret, that nothing was changed
on the way, and that neither the request nor the answer is an old one. Only TLS encrypts what they send. A proof that
was made for TLS does not count without it, nor the other way round.
"""

from __future__ import annotations

import hashlib
import hmac
import struct

from holdfast.endpoint.workers.frames.packets import decode_answer, encode_answer
from holdfast.http.exchange import Request
from holdfast.http.outcome import Response, TransportError

STAMP = "Holdfast-Stamp"
PROOF = "Holdfast-Proof"
FRAMES = "frames"
"""Path of the request with which a connection with frames begins. The number of its worker follows."""

SEALED = "sealed"
"""The same for a sealed connection, which has one message at a time."""


class NodeProof:
    """The secret of a cluster, and what it proves.

    Args:
        is_encrypted: Whether the nodes use TLS between them.
    """

    def __init__(self, secret: str, *, is_encrypted: bool = False) -> None:
        use = b"nodes of one cluster that use TLS\0" if is_encrypted else b"nodes of one cluster\0"
        self._key = hashlib.sha256(use + secret.encode()).digest()

    @property
    def mark(self) -> str:
        """A digest by which nodes find in their database that they have the same secret, and agree on TLS. It does not
        reveal the secret."""
        return self._digest("mark", "", "", "", b"")

    def digest_of(self, table: str, content: bytes) -> str:
        """Return a short digest of a table of the configuration. Without the secret, it does not tell the content."""
        return self._digest("table", table, "", "", content)[:16]

    def headers(self, stamp: str, method: str, target: str, body: bytes) -> dict[str, str]:
        return {STAMP: stamp, PROOF: self._digest("request", stamp, method, target, body)}

    def stamp_of(self, request: Request) -> str | None:
        """Return the stamp of a request that a node has sent; None if its sender did not prove that it is one."""
        stamp = request.headers.get(STAMP.lower().encode(), b"").decode("latin-1")
        proof = request.headers.get(PROOF.lower().encode(), b"").decode("latin-1")
        expected = self._digest("request", stamp, request.method, request.target, request.body)
        return stamp if stamp and hmac.compare_digest(expected.encode(), proof.encode("latin-1")) else None

    def seal(self, stamp: str, response: Response) -> tuple[bytes, str]:
        """Return an answer to a node's request as the content of a response, and the proof of it."""
        content = encode_answer(response)
        return content, self._digest("answer", stamp, "", "", content)

    def open(self, stamp: str, response: Response, url: str) -> Response | TransportError:
        """Return the sealed answer in a response, or the error if no node has sealed it."""
        expected = self._digest("answer", stamp, "", "", response.body)
        proof = response.headers.get(PROOF.lower(), "")
        if not hmac.compare_digest(expected.encode(), proof.encode("latin-1", "replace")):
            return TransportError(
                f"{url} answered {response.status} without the proof that it is a node of this cluster",
                connected=False,
                remedy="Give all nodes the same secret, and check the URL of that node.",
            )
        return decode_answer(response.body)

    def frame_keys(self, stamp: str) -> tuple[bytes, bytes]:
        """Return the keys of the requests and of the answers on the connection that a request with this stamp began."""
        requests, answers = (self._digest(f"framed {what}", stamp, "", "", b"") for what in ("requests", "answers"))
        return bytes.fromhex(requests), bytes.fromhex(answers)

    def _digest(self, kind: str, stamp: str, method: str, target: str, body: bytes) -> str:
        parts = "\0".join((kind, stamp, method, target)).encode("utf-8", "replace")
        return hmac.digest(self._key, b"%b%b%b" % (struct.pack(">Q", len(parts)), parts, body), "sha256").hex()
