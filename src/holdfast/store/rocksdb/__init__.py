"""The embedded store, on RocksDB: opening, commits, checks, repair and the log that proves which batches were stored.

This package owns the store's directory and its formats. It knows no database server and no protocol rules. Open
``store`` first; ``opening`` decides whether a directory is complete.
"""
