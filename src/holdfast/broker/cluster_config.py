"""Settings of a cluster: what a broker needs to be one of its nodes."""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
import time
from dataclasses import dataclass
from typing import Annotated, Final

from holdfast.config.values import Folder, Name, Secret, SecretFile, SecretVariable, Url, host_of, is_name
from holdfast.endpoint.arguments import check_url
from holdfast.endpoint.listener_settings import NodeAccess, public_host
from holdfast.endpoint.logs import SECONDS_LEFT
from holdfast.exceptions import ConfigurationError, clause
from holdfast.http.reasons import tls_reason
from holdfast.http.tls import ClientTLS, ServerTLS
from holdfast.http.urls import in_url, split_url
from holdfast.settings import File, Port, Unit, Within

NODE_VARIABLE: Final = "HOLDFAST_NODE"
OWN_CACHE: Final = "{node}"
"""In the URL of a topic, the name of the node, so that nodes on one machine have their own caches."""
URL_VARIABLE: Final = "HOLDFAST_NODE_URL"
ADMIN_URL_VARIABLE: Final = "HOLDFAST_NODE_ADMIN_URL"
SHORTEST_SECRET: Final = 16
"""Characters of the secret that the nodes share."""


@dataclass(frozen=True)
class NodeTLS:
    """TLS between the nodes of a cluster. Each node shows its certificate to the others.

    Args:
        certificate: PEM file with the certificate of this node and its chain. It must be valid for the host in the
            node's URL.
        key: PEM file with the private key, unless the certificate's file contains it.
        ca: PEM file of the certificate authorities that sign the nodes' certificates, and no others.
    """

    certificate: File
    ca: File
    key: File | None = None

    def accepting(self) -> ssl.SSLContext:
        """Return the context for requests of other nodes.

        Raises:
            ConfigurationError: A file is not valid.
        """
        return ServerTLS(self.certificate, self.key, self.ca).context()

    def asking(self) -> ssl.SSLContext:
        """Return the context for requests to other nodes.

        Raises:
            ConfigurationError: A file is not valid.
        """
        context = ClientTLS(self.ca, self.certificate, self.key).context()
        assert context is not None
        return context

    def authorities_end(self) -> list[float]:
        """Return the end of the validity of each authority's certificate, in seconds since 1970.

        Raises:
            ConfigurationError: A file is not valid.
        """
        return [ssl.cert_time_to_seconds(str(one["notAfter"])) for one in self.asking().get_ca_certs()]

    def valid_until(self, host: str) -> float:
        """Check the certificate of this node as other nodes do: the node shakes hands with itself, in memory.

        Args:
            host: The host in the node's URL.

        Returns:
            The end of the certificate's validity in seconds since 1970.

        Raises:
            ConfigurationError: A file is not valid, or other nodes would refuse the certificate.
        """
        asked, served = ssl.MemoryBIO(), ssl.MemoryBIO()
        asking, accepting = self.asking(), self.accepting()
        try:
            client = asking.wrap_bio(served, asked, server_hostname=host)
            server = accepting.wrap_bio(asked, served, server_side=True)
            # Each side reads what the other has written: TLS 1.3 takes two rounds, 1.2 three.
            for one in (client, server) * 3:
                with contextlib.suppress(ssl.SSLWantReadError):
                    one.do_handshake()
        except (ssl.SSLError, ValueError) as error:  # the latter: no certificate can be for such a host
            raise ConfigurationError(
                f"other nodes would refuse the certificate in {self.certificate}: {clause(tls_reason(error))}",
                remedy=f"The certificate and its authority must be valid today, the authority must be in {self.ca}, "
                f"and the certificate must be for {host}, the host in the node's URL (url, or {URL_VARIABLE}).",
            ) from error
        certificate = client.getpeercert()
        assert certificate is not None
        return ssl.cert_time_to_seconds(str(certificate["notAfter"]))


@dataclass(frozen=True)
class ClusterConfig:
    """Several brokers that share one database or Kafka topic, and carry on each other's work, all with the same file.

    Args:
        secret_file: File with the secret that the nodes share, at least 16 characters. A node accepts requests only
            from nodes that have it.
        secret_env: Environment variable with the secret.
        partitions: Number of partitions of the cluster, fixed when it is created. A node runs one process for each
            partition that it owns.
        lease: How long a node that stopped answering keeps its partitions. If its processes were killed, it
            loses them within a second.
        node: Name of this node, different on each. The default is the environment variable HOLDFAST_NODE, or the
            machine's name.
        host: Address to listen on for the other nodes.
        port: Port to listen on for the other nodes. 0 chooses a free port.
        memory: Directory in which the node remembers the identity of its cluster and the last batch of each partition,
            in the file ``NODE.json``. With it, a node that starts creates no second cluster in a database that is being
            restored, and refuses a database that went back to an older copy.
        url: URL of that listener, as the other nodes reach it. The default is the environment variable
            HOLDFAST_NODE_URL, or ``host`` and ``port``, with the machine's name instead of ``0.0.0.0``.
        admin_url: URL of this node's admin listener, as Spark's executors reach it. The default is the environment
            variable HOLDFAST_NODE_ADMIN_URL, or the listener's address, with the machine's name instead of ``0.0.0.0``.
        tls: TLS between the nodes. Without it, the nodes recognize each other by the secret, and send everything
            readable.
    """

    secret_file: SecretFile | None = None
    secret_env: SecretVariable | None = None
    partitions: Annotated[int, Within(1, 64)] = 24
    lease: Annotated[float, Unit.SECONDS, Within(1, 120)] = 6.0
    node: Name | None = None
    host: str = "127.0.0.1"
    port: Port = 8082
    memory: Folder | None = None
    url: Url | None = None
    admin_url: Url | None = None
    tls: NodeTLS | None = None

    def access(self) -> NodeAccess:
        """Return how the nodes recognize each other.

        Raises:
            ConfigurationError: A file is not valid.
        """
        assert self.secret is not None  # config_checks saw to it
        tls = (self.tls.accepting(), self.tls.asking()) if self.tls is not None else (None, None)
        return NodeAccess(self.secret.reveal(), *tls)

    @property
    def scheme(self) -> str:
        """The scheme of the nodes' URLs."""
        return "http" if self.tls is None else "https"

    @property
    def secret(self) -> Secret | None:
        """The secret that the nodes share."""
        return self.secret_file or self.secret_env

    def node_name(self) -> str:
        """Return the name of this node.

        Raises:
            ConfigurationError: The environment variable contains no valid name.
        """
        name = self.node or os.environ.get(NODE_VARIABLE) or socket.gethostname()
        if not is_name(name):
            raise ConfigurationError(
                f"{name[:80]!r} is not a valid name of a node",
                remedy=f"Set {NODE_VARIABLE} to 1 to 64 letters, digits, dots, hyphens and underscores.",
            )
        return name

    def node_url(self, port: int) -> str | None:
        """Return the URL at which other nodes reach this one; None if it is not known before the node listens.

        Args:
            port: The port on which it listens; 0: not known yet.

        Raises:
            ConfigurationError: The environment variable contains no valid URL.
        """
        given = _given(self.url, URL_VARIABLE)
        if given:
            if not given.startswith(f"{self.scheme}://"):
                use = "without TLS between" if self.tls is None else "with TLS between"
                raise ConfigurationError(
                    f"{given} cannot be the URL of a node in a cluster {use} its nodes",
                    remedy=f"Begin it with {self.scheme}://, or configure tls of [cluster] at all nodes or at none.",
                )
            if split_url(given).path not in ("", "/"):
                raise ConfigurationError(
                    f"{given} has a path, but other nodes reach a node at its root",
                    remedy="Write only the scheme, the host and the port.",
                )
            return given
        if not port:
            return None
        return f"{self.scheme}://{in_url(public_host(self.host))}:{port}"

    def check_certificate(self) -> float | None:
        """Check the node's certificate as :meth:`NodeTLS.valid_until` does.

        Returns:
            The end of its validity in seconds since 1970; None without TLS between the nodes.

        Raises:
            ConfigurationError: A file or the node's URL is not valid, or other nodes would refuse the certificate.
        """
        if self.tls is None:
            return None
        url = self.node_url(self.port or 443)  # any port: the certificate is for the host
        assert url is not None
        return self.tls.valid_until(host_of(url)[0])

    def expiring_certificates(self) -> dict[str, str]:
        """Return the files with the certificates of the node and of its authorities that expire soon, and the last day
        of each.

        One that has expired is not in it: it was valid when the node started, or the node would not run.
        """
        found: dict[str, str] = {}
        if self.tls is None:
            return found
        now, ends = time.time(), dict[str, float | None]()
        with contextlib.suppress(ConfigurationError):
            ends[self.tls.certificate] = self.check_certificate()
        with contextlib.suppress(ConfigurationError):
            ends[self.tls.ca] = min((end for end in self.tls.authorities_end() if end > now), default=None)
        for file, end in ends.items():
            if end is not None and end - now < SECONDS_LEFT:
                found[file] = time.strftime("%Y-%m-%d", time.gmtime(end))
        return found

    def given_admin_url(self) -> str:
        """Return the configured URL of the admin listener, "" without one.

        Raises:
            ConfigurationError: The environment variable contains no valid URL.
        """
        return _given(self.admin_url, ADMIN_URL_VARIABLE)


def _given(url: str | None, variable: str) -> str:
    found = url or os.environ.get(variable) or ""
    if found:
        check_url(variable, found)
    return found.rstrip("/")
