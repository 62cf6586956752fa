"""HTTP/1.1 from both ends: carries bytes, and knows nothing of SOAP, WS-ReliableMessaging or stores.

This room owns TLS, addresses and the shape of requests and answers. Its halves are ``client`` and ``server``; neither
knows the other. Open ``exchange`` first: it is what a handler sees, behind our server or any other.
"""
