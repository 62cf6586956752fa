"""One admin interface for all workers: it asks each of them, and joins their answers.

This room owns which worker is asked, and how answers become one. It knows no store. Open ``application`` first.
"""
