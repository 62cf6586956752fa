"""Which versions a source speaks or tries: those of a named peer, or all, the likeliest first."""

from __future__ import annotations

from holdfast.core.versions import ALL_VERSIONS, TRIED_VERSIONS, Versions
from holdfast.exceptions import ConfigurationError
from holdfast.settings import brief_value

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


def versions_of(profile: object, given: object) -> Versions:
    """Return the versions of a known peer.

    Args:
        given: The versions that are given besides; None without any.

    Raises:
        ConfigurationError: There is no such profile, or versions are given as well.
    """
    if not isinstance(profile, str) or profile not in PROFILES:
        raise ConfigurationError(
            f"{brief_value(profile)} is not a profile.", remedy=f"The profiles are {', '.join(PROFILES)}."
        )
    if given is not None:
        raise ConfigurationError(
            f"The profile {profile!r} sets the versions, but versions are given as well.",
            remedy="Give only one of the two.",
        )
    return PROFILES[profile]
