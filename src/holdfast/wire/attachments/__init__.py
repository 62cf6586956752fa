"""Messages with attachments: MTOM (XOP) and SOAP with Attachments, as MIME parts around an envelope.

This package owns the split of a multipart body (``mime``), the parts as a record stores them and a peer receives them
(``package``), and the references of a body to its parts (``references``). It knows no connection, file or store. Open
``package`` first.
"""
