"""Which versions a source speaks or tries: those of a named peer, or all, the likeliest first."""

from __future__ import annotations

from holdfast.core.versions import ALL_VERSIONS, TRIED_VERSIONS, Versions

PROFILES = {
    "wcf": Versions("1.0", "2005/08", "1.2"),
    "wcf-2007": Versions("1.1", "2005/08", "1.2"),
    "cxf": Versions("1.0", "2004/08", "1.1"),
}
"""Default versions of named peers: WSHttpBinding, WS2007HttpBinding, and Apache CXF's RMFeature."""

BY_PREFERENCE = sorted(ALL_VERSIONS, key=lambda one: (one.soap.value, one.addressing.value, one.rm.value), reverse=True)
"""All versions. Those of WCF's bindings come first."""

PREFERRED = [one for one in BY_PREFERENCE if one in TRIED_VERSIONS]
"""Versions that a source or forwarder tries by default, in order."""
