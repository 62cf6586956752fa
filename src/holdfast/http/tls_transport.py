"""TLSTransport: TLS over the plain transport of any event loop, with buffers of about one TLS record.

asyncio's own TLS keeps a buffer of 256 KB for each connection. It and uvloop's encrypt everything that is written at
once, in buffers of OpenSSL that never shrink: an idle connection keeps as much memory as the largest answer that it
ever sent. Neither can be configured. This transport uses the public interface of ``ssl`` and encrypts one record at a
time. It has no task, and a timer only while it closes.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from typing import Any, Final, cast

RECORD_BYTES: Final = 16 * 1024
"""Bytes that OpenSSL encrypts or decrypts at a time: the largest TLS record (RFC 8446 section 5.1)."""

TOGETHER_BYTES: Final = 64 * 1024
"""Encrypted bytes that the plain transport gets at a time."""

HIGH_WATER: Final = 64 * 1024
"""Bytes in the buffers of a connection above which its protocol must pause writing."""
LOW_WATER: Final = 16 * 1024
"""Bytes at which the protocol may resume."""

SHUTDOWN_SECONDS: Final = 10.0
"""Time that a peer has to end its side of a connection, after this side has closed its own."""


class TLSTransport(asyncio.Transport, asyncio.Protocol):
    """The transport of one connection in TLS. It is itself the protocol of a plain transport.

    Args:
        protocol: Receives the decrypted bytes. ``connection_made`` follows the handshake.
        server_side: Whether this side is the server.
        server_hostname: The name that the server's certificate must have; None for a server.
    """

    __slots__ = (
        "_backlog", "_backlog_bytes", "_error", "_incoming", "_is_closing", "_is_full", "_is_open", "_is_over",
        "_outgoing", "_peer_has_closed", "_protocol", "_protocol_is_paused", "_ready", "_timer", "_tls", "_transport",
    )  # fmt: skip

    _transport: asyncio.Transport

    def __init__(
        self,
        protocol: asyncio.Protocol,
        context: ssl.SSLContext,
        *,
        server_side: bool = False,
        server_hostname: str | None = None,
    ) -> None:
        super().__init__()
        self._ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._protocol = protocol
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side, server_hostname)
        self._backlog: deque[memoryview] = deque()
        self._backlog_bytes = 0
        self._error: Exception | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._is_open = False  # the handshake is over
        self._is_closing = False  # further writes are ignored
        self._is_over = False  # this side's close_notify has left: received data is dropped
        self._peer_has_closed = False  # the peer's close_notify has come
        self._is_full = False  # the plain transport accepts no data for now
        self._protocol_is_paused = False

    async def shake_hands(self) -> None:
        """Wait for the end of the handshake. If cancelled, end the connection.

        Raises:
            OSError: There is no connection: the handshake failed (``ssl.SSLError``), or the peer ended it.
        """
        try:
            await self._ready
        except BaseException:
            self.abort()
            raise

    # --- the plain transport's side -------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._shake_hands()

    def data_received(self, data: bytes) -> None:
        view, parts = memoryview(data), list[bytes]()
        # A record at a time, because OpenSSL's buffers grow with what they are given and never shrink.
        for start in range(0, len(data), RECORD_BYTES):
            # After close_notify, whatever comes is not the peer's (RFC 8446 section 6.1).
            if self._is_over or self._peer_has_closed:
                break
            self._incoming.write(view[start : start + RECORD_BYTES])
            if self._is_open or self._shake_hands():
                self._decrypt(parts)
        if parts:
            self._protocol.data_received(parts[0] if len(parts) == 1 else b"".join(parts))
        if self._error is not None or self._is_over:
            return
        self._send_pending()
        if self._peer_has_closed and not self._is_closing:
            self._protocol.eof_received()
            self.close()
        else:
            self._flush()

    def eof_received(self) -> None:
        # RFC 9112 section 9.8: without the peer's close_notify, an attacker may have truncated its data.
        if not self._is_closing and not self._peer_has_closed and self._error is None:
            self._error = ConnectionResetError()

    def connection_lost(self, error: Exception | None) -> None:
        self._is_closing = self._is_over = True
        self._drop_backlog()
        if self._timer is not None:
            self._timer.cancel()
        error = self._error or error
        if self._is_open:
            self._protocol.connection_lost(error)
        elif not self._ready.done():
            self._ready.set_exception(error or ConnectionResetError())

    def pause_writing(self) -> None:
        self._is_full = True

    def resume_writing(self) -> None:
        self._is_full = False
        self._flush()

    # --- TLS ------------------------------------------------------------------------------------------------------

    def _shake_hands(self) -> bool:
        """Take the next step of the handshake, and return whether the connection is open."""
        if self._is_closing:
            return False
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            self._send_pending()
            return False
        except ssl.SSLError as error:
            self._fail(error)
            return False
        self._is_open = True
        self._send_pending()
        self._protocol.connection_made(self)
        if not self._ready.done():
            self._ready.set_result(None)
        return not self._is_over

    def _decrypt(self, parts: list[bytes]) -> None:
        try:
            while self._incoming.pending or self._tls.pending():
                data = self._tls.read(RECORD_BYTES)
                if not data:
                    self._peer_has_closed = True
                    return
                parts.append(data)
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLZeroReturnError:
            self._peer_has_closed = True
        except ssl.SSLError as error:
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        """Send the alert that tells the peer the reason, and close."""
        self._error = error
        self._send_pending()
        self._is_closing = self._is_over = True
        self._drop_backlog()
        self._transport.close()

    def _send_pending(self) -> None:
        if self._outgoing.pending:
            self._transport.write(self._outgoing.read())

    def _flush(self) -> None:
        """Encrypt and send as much as the plain transport takes. Then close if the protocol has asked for it."""
        while self._backlog and not self._is_full and not self._is_over:
            if not self._encrypt():
                break
        self._tell_protocol()
        if self._is_closing and not self._is_over and not self._backlog:
            self._say_goodbye()

    def _encrypt(self) -> bool:
        """Encrypt and send some records, and return whether more may follow."""
        sealed, size = list[bytes](), 0
        try:
            # Several records in one write: a system call costs more than the copy.
            while self._backlog and size < TOGETHER_BYTES:
                first = self._backlog[0]
                taken = self._tls.write(first[:RECORD_BYTES])
                self._backlog_bytes -= taken
                if taken == len(first):
                    self._backlog.popleft()
                else:
                    self._backlog[0] = first[taken:]
                sealed.append(self._outgoing.read())
                size += len(sealed[-1])
        except ssl.SSLWantReadError:  # TLS 1.2 renegotiates
            self._send_pending()
            return False
        except ssl.SSLError as error:
            self._fail(error)
            return False
        finally:
            if sealed:
                self._transport.write(sealed[0] if len(sealed) == 1 else b"".join(sealed))
        return True

    def _tell_protocol(self) -> None:
        """Pause or resume the protocol, by the bytes that the peer has not read."""
        size = self.get_write_buffer_size()
        if self._protocol_is_paused:
            if size <= LOW_WATER:
                self._protocol_is_paused = False
                self._protocol.resume_writing()
        # Two marks, so that the protocol does not stop and go with each record.
        elif size > HIGH_WATER:
            self._protocol_is_paused = True
            self._protocol.pause_writing()

    def _say_goodbye(self) -> None:
        """Send close_notify and end this side of the connection. The peer ends its side, or is cut off."""
        self._is_over = True
        try:
            self._tls.unwrap()
        except (ssl.SSLError, ValueError):
            pass  # it waits for the peer's, or there was something else
        self._send_pending()
        if self._peer_has_closed or not self._transport.can_write_eof():
            self._transport.close()
            return
        try:
            self._transport.write_eof()
        except OSError:
            self._transport.abort()  # the peer has reset it
            return
        self._transport.resume_reading()
        # A peer that never ends its side must not keep the descriptor.
        self._timer = asyncio.get_running_loop().call_later(SHUTDOWN_SECONDS, self._transport.abort)

    def _drop_backlog(self) -> None:
        self._backlog.clear()
        self._backlog_bytes = 0

    # --- the protocol's side --------------------------------------------------------------------------------------

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._is_closing or not data:
            return
        # Copied if it is mutable: it is encrypted later.
        self._backlog.append(memoryview(data if isinstance(data, bytes) else bytes(data)))
        self._backlog_bytes += len(data)
        self._flush()

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """Let another protocol receive what comes from now on."""
        self._protocol = cast(asyncio.Protocol, protocol)

    def get_write_buffer_size(self) -> int:
        return self._backlog_bytes + self._transport.get_write_buffer_size()

    def pause_reading(self) -> None:
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        if not self._is_closing:
            self._transport.resume_reading()

    def is_closing(self) -> bool:
        return self._is_closing

    def close(self) -> None:
        if not self._is_closing:
            self._is_closing = True
            self._flush()

    def abort(self) -> None:
        self._is_closing = self._is_over = True
        self._drop_backlog()
        if hasattr(self, "_transport"):
            self._transport.abort()

    def can_write_eof(self) -> bool:
        return False

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        if name == "ssl_object":
            return self._tls
        return self._transport.get_extra_info(name, default)
