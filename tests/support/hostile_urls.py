"""Addresses that look like URLs and are none, for every place that accepts one."""

from __future__ import annotations

NO_URLS = [
    "http://[::1",
    "http://]/",
    "http://a]b/",
    "http://[::g]/",
    "http://[v1]/",
    "http://[]/",
    "http://h:99999/",
    "http://h:x/",
    "http://h:-1/",
    "http://",
    "http:///path",
    "http://:80/",
]
NO_HOSTS = NO_URLS[:6]
"""Those that Python's ``urlsplit`` refuses with ValueError."""
