"""A service of files, offered from a WSDL with binary values: what the tests of attachments in values call."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from holdfast import Attachment, Destination, DestinationHTTP, Message, Processor, WithAttachments
from holdfast.wire.limits import DEFAULT, Limits

WSDL = Path(__file__).resolve().parent.parent / "data" / "wsdl" / "files.wsdl"
LARGE = bytes(range(256)) * 20
SMALL = b"\0small\xff"
_MTOM = re.compile(rb"<mtom:OptimizedMimeSerialization[^>]*/>")


def wsdl(*, demands_mtom: bool) -> bytes:
    """The WSDL, with a policy that demands MTOM or without."""
    text = WSDL.read_bytes()
    return text if demands_mtom else _MTOM.sub(b"", text)


class Files:
    """The service; each reply is the last file of the request.

    Args:
        demands_mtom: Whether its policy demands MTOM.
        mtom: Its own setting.
        store: Its store.
        extra: Whether it returns an attachment besides the values.
        processors: Its processors.
        most: Maximum bytes of a message with its values in base64.
    """

    def __init__(
        self,
        *,
        demands_mtom: bool = True,
        mtom: bool | None = None,
        store: Any = ":memory:",
        extra: bool = False,
        processors: Sequence[Processor] = (),
        most: int = DEFAULT.max_bytes,
    ) -> None:
        self.stored: list[list[dict[str, Any]]] = []
        self.logged: list[bytes] = []
        self.attached: list[list[tuple[str, bytes]]] = []
        """Content-ID and content of the attachments of each message, however they are named in it."""
        http = DestinationHTTP(mtom=mtom, envelopes=Limits(max_bytes=most))
        app = self.app = Destination(store, wsdl=wsdl(demands_mtom=demands_mtom), http=http, processors=processors)

        @app.operation("Store")
        def keep(file: list[dict[str, Any]], message: Message) -> Any:
            self._see(message)
            self.stored.append(file)
            value = {"last": file[-1]}
            return WithAttachments(value, [Attachment(b"more", content_id="more@files")]) if extra else value

        @app.operation("Log")
        async def log(content: bytes, message: Message) -> None:
            self._see(message)
            self.logged.append(content)

    def _see(self, message: Message) -> None:
        self.attached.append([(one.content_id, one.read()) for one in message.attachments])
