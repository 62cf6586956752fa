"""What secures the messages of one side in a live test, and how a process that is killed hears of it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Literal, NamedTuple

import holdfast
from holdfast.endpoint.envelopes.processors import Processor

SECURED = ("certificates", "certificates and encryption", "user name (text)", "user name (digest)")
"""As the matrix names them."""
_VARIABLE = "INTEROP_SECURITY"


class Security(NamedTuple):
    """What secures the messages of a side, and the files it needs for that."""

    secured: str
    role: Literal["source", "destination"]
    certificate: str
    key: str
    trusted: str
    timestamp: bool = False
    """Whether a user name has a Timestamp."""

    @property
    def environment(self) -> dict[str, str]:
        """What a process finds this in."""
        return {_VARIABLE: json.dumps(self)}

    def processors(self, nonces: Path | None = None) -> list[Processor]:
        """Those of a Source, or of a Destination with a file for its nonces."""
        if self.secured.startswith("certificates"):
            encrypt = holdfast.Encryption() if "encryption" in self.secured else None
            # Basic256Sha256 of the Java stacks is rsa-sha1 with SHA-256 digests.
            own = self.certificate, self.key
            return [holdfast.X509(*own, trusted=self.trusted, suite="Basic256Sha256", encrypt=encrypt, nonces=nonces)]
        digest = "digest" in self.secured
        if self.role == "source":
            return [holdfast.UsernameToken("alice", "secret", digest=digest, timestamp=self.timestamp)]
        return [holdfast.UsernameTokenValidator({"alice": "secret"}, require_digest=digest, nonces=nonces)]


def processors_told(nonces: Path | None = None) -> list[Processor]:
    """Those that the environment of this process demands."""
    told = os.environ.get(_VARIABLE)
    return Security(*json.loads(told)).processors(nonces) if told else []
