"""HTTP/1.1 from both ends: carries bytes, and knows nothing of SOAP, WS-ReliableMessaging or stores.

The client's half is ``client``, ``connection``, ``pool``, ``proxies``, ``outcome``; the server's ``server``,
``server_connection``, ``handshakes``, ``known_heads``, ``refusals``; ``exchange`` is what a handler sees, behind that
server or, through ``asgi``, behind any other.
"""
