"""NodeProof: how the nodes of a cluster prove to each other that they have its secret, which is never sent.

Each request has a random number and a keyed digest of everything in it; the answer has one of the same number and of
everything in the answer. So both sides know that the other has the secret, and that nothing was changed on the way.
What they send is not encrypted, and a recorded request could be sent again: nodes need a network of their own, or TLS.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import struct

import msgspec

from holdfast.http.exchange import Request
from holdfast.http.outcome import Response, TransportError

NONCE = "Holdfast-Nonce"
PROOF = "Holdfast-Proof"


class NodeProof:
    """The secret of a cluster, and what it proves.

    Args:
        secret: The secret.
    """

    def __init__(self, secret: str) -> None:
        self._key = hashlib.sha256(b"nodes of one cluster\0" + secret.encode()).digest()

    @property
    def mark(self) -> str:
        """A digest by which nodes find in their database that they have the same secret. It does not reveal it."""
        return self._digest("mark", "", "", "", b"")

    def headers(self, method: str, target: str, body: bytes) -> dict[str, str]:
        """Return the headers of a request to another node."""
        nonce = secrets.token_hex(16)
        return {NONCE: nonce, PROOF: self._digest("request", nonce, method, target, body)}

    def nonce_of(self, request: Request) -> str | None:
        """Return the number of a request that a node has sent; None if its sender did not prove that it is one."""
        nonce = request.headers.get(NONCE.lower().encode(), b"").decode("latin-1")
        proof = request.headers.get(PROOF.lower().encode(), b"").decode("latin-1")
        expected = self._digest("request", nonce, request.method, request.target, request.body)
        return nonce if nonce and hmac.compare_digest(expected.encode(), proof.encode("latin-1")) else None

    def seal(self, nonce: str, response: Response) -> tuple[bytes, str]:
        """Return an answer to a node's request as the content of a response, and the proof of it."""
        head = _encode((response.status, dict(response.headers)))
        content = b"%b%b%b" % (struct.pack(">I", len(head)), head, response.body)
        return content, self._digest("answer", nonce, "", "", content)

    def open(self, nonce: str, response: Response, url: str) -> Response | TransportError:
        """Return the sealed answer in a response, or the error if no node has sealed it."""
        expected = self._digest("answer", nonce, "", "", response.body)
        proof = response.headers.get(PROOF.lower(), "")
        if not hmac.compare_digest(expected.encode(), proof.encode("latin-1", "replace")):
            return TransportError(
                f"{url} answered {response.status} without the proof that it is a node of this cluster",
                connected=False,
                remedy="Give all nodes the same secret, and check the URL of that node.",
            )
        (length,) = struct.unpack_from(">I", response.body)
        status, headers = _decode(response.body[4 : 4 + length])
        return Response(status, headers, response.body[4 + length :])

    def _digest(self, kind: str, nonce: str, method: str, target: str, body: bytes) -> str:
        parts = "\0".join((kind, nonce, method, target)).encode("utf-8", "replace")
        digest = hmac.new(self._key, struct.pack(">Q", len(parts)) + parts, hashlib.sha256)
        digest.update(body)
        return digest.hexdigest()


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(tuple[int, dict[str, str]]).decode
