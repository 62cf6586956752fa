"""The options of the way to a server, which reads and writes share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from holdfast.client.admin import Access
from holdfast.exceptions import ConfigurationError
from holdfast.pipeline.options.values import as_name, as_seconds, as_token, as_url, option


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """Where a server is, how long it may be away, and what it is shown.

    Args:
        broker: URL of the server's admin listener as the executors see it.
        away: Seconds a server that is away is waited for before the read or the write fails.
        token: The admin listener's token. Spark shows options to whoever may look at the query: ``tokenFile``, or the
            environment variable ``HOLDFAST_ADMIN_TOKEN`` of the driver, keep it to themselves.
        token_file: File with the token. This file and those below are read once, in the driver; tasks need none.
        ca_file: PEM file of the authorities to trust, for https, instead of the system's.
        certificate_file: PEM file of a certificate to show, with its chain.
        key_file: PEM file of its key, if that is in another file.
        proxy: URL of an HTTP proxy to go through.
        access: What comes of these, the files being read.
    """

    broker: str = field(metadata=option("broker", as_url))
    away: float = field(default=60.0, metadata=option("awaySeconds", as_seconds))
    token: str = field(default="", metadata=option("token", as_token), repr=False)
    token_file: str = field(default="", metadata=option("tokenFile", as_name))
    ca_file: str = field(default="", metadata=option("caFile", as_name))
    certificate_file: str = field(default="", metadata=option("certificateFile", as_name))
    key_file: str = field(default="", metadata=option("keyFile", as_name))
    proxy: str = field(default="", metadata=option("proxy", as_name), repr=False)
    access: Access = field(default=Access(), repr=False)


def access_of(values: Mapping[str, Any]) -> Access:
    """What the files hold, read now."""
    if values.get("token") and values.get("token_file"):
        raise ConfigurationError("options token and tokenFile exclude each other", remedy="leave one of them out")
    access = Access.of_files(
        token_file=values.get("token_file"),
        ca=values.get("ca_file"),
        certificate=values.get("certificate_file"),
        key=values.get("key_file"),
        proxy=values.get("proxy"),
    )
    return replace(access, token=values["token"]) if values.get("token") else access
