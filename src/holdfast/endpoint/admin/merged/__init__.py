"""One admin interface for all workers: it asks each of them, and joins their answers.

This room owns which worker is asked, and how answers become one. It knows no store, and no numbers but those that are
unique in the endpoint. Open ``application`` first.
"""
