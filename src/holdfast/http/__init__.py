"""HTTP/1.1: carries bytes, and knows nothing of SOAP, WS-ReliableMessaging or stores."""
