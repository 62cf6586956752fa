"""Connection options that reads and writes share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from holdfast.client.admin import Access
from holdfast.exceptions import ConfigurationError
from holdfast.pipeline.options.values import as_name, as_seconds, as_token, as_urls, option


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """Address of a server, how long to wait for it, and the credentials for it.

    Args:
        broker: URL of the server's admin listener, reachable from the executors. For a cluster, the URLs of several
            nodes, separated by commas: if one does not answer, the next one is used.
        away: Seconds to wait for an unavailable server before the read or write fails.
        token: The admin listener's token. Spark shows options to every user who can view the query. To keep the token
            secret, use ``tokenFile``, or set ``HOLDFAST_ADMIN_TOKEN`` in the environment of the driver.
        token_file: File that contains the token. The driver reads this file and those below once; tasks need none of
            them.
        ca_file: PEM file of the certificate authorities to trust for https, instead of the system's.
        certificate_file: PEM file of the client certificate, with its chain.
        key_file: PEM file of the certificate's key, if the key is in a separate file.
        proxy: URL of the HTTP proxy to use.
        access: The resulting credentials, with the contents of the files.
    """

    broker: str = field(metadata=option("broker", as_urls))
    away: float = field(default=60.0, metadata=option("awaySeconds", as_seconds))
    token: str = field(default="", metadata=option("token", as_token), repr=False)
    token_file: str = field(default="", metadata=option("tokenFile", as_name))
    ca_file: str = field(default="", metadata=option("caFile", as_name))
    certificate_file: str = field(default="", metadata=option("certificateFile", as_name))
    key_file: str = field(default="", metadata=option("keyFile", as_name))
    proxy: str = field(default="", metadata=option("proxy", as_name), repr=False)
    access: Access = field(default=Access(), repr=False)


def access_of(values: Mapping[str, Any]) -> Access:
    """Read the files that the options name and return their credentials."""
    if values.get("token") and values.get("token_file"):
        raise ConfigurationError("options token and tokenFile exclude each other", remedy="Remove one of them")
    access = Access.of_files(
        token_file=values.get("token_file"),
        ca=values.get("ca_file"),
        certificate=values.get("certificate_file"),
        key=values.get("key_file"),
        proxy=values.get("proxy"),
    )
    return replace(access, token=values["token"]) if values.get("token") else access
