"""One admin interface for all workers: it asks each of them, and joins their answers.

This room owns which worker is asked, and how answers become one. It reads no store. Open ``application`` first.
"""
