"""Stores in PostgreSQL, MariaDB and MySQL, through SQLAlchemy.

This package owns tables, their versions and each database's dialect. It knows no RocksDB and no protocol rules. Open
``store`` first; ``schema`` has the tables.
"""
