"""HTTP/1.1 from both ends: carries bytes, and knows nothing of SOAP, WS-ReliableMessaging or stores.

The client's half is ``client``, ``client_connection``, ``known_answers``, ``pool``, ``proxies`` and ``outcome``; the
server's is ``server``, ``server_connection``, ``known_heads``, ``handshakes`` and ``refusals``. ``exchange`` is what a
handler sees, behind that server or, through ``asgi``, behind any other.
"""
