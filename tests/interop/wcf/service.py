"""The contract of the recordings for ``holdfast serve wcf.service:app``. Environment variables say where it keeps what.

``WCF_SERVICE_STORE`` is its store. Each message that a handler gets is a line of ``WCF_SERVICE_LOG``: the Sequence, the
number, and the contract's key and number. An Echo takes ``WCF_SERVICE_SECONDS``. With ``WCF_SERVICE_NONCES``, a file,
it demands the user alice with the password "secret".
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from wcf.destination import contract_app, key_of

import holdfast

_LOG = Path(os.environ["WCF_SERVICE_LOG"])
_SECONDS = float(os.environ.get("WCF_SERVICE_SECONDS", "0"))


async def _handled(message: holdfast.Message) -> None:
    with _LOG.open("a") as log:
        log.write(f"{message.sequence} {message.message_number} {key_of(message)}\n")
    if _SECONDS and message.action.endswith("Echo"):
        await asyncio.sleep(_SECONDS)


_NONCES = os.environ.get("WCF_SERVICE_NONCES")
_PROCESSORS = [holdfast.UsernameTokenValidator({"alice": "secret"}, nonces=_NONCES)] if _NONCES else []

app = contract_app(
    os.environ["WCF_SERVICE_STORE"],
    _handled,
    handling=holdfast.HandlingPolicy(concurrency=64),
    processors=_PROCESSORS,
)
