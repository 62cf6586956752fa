"""Stores in PostgreSQL, MariaDB and MySQL, through SQLAlchemy.

This room owns tables, their versions and each database's dialect. It knows no RocksDB and no protocol rule. Open
``store`` first; ``schema`` has the tables.
"""
