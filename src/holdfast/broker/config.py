"""What a broker is told: frozen values, each with its default. Owns the names of all keys of a configuration file.

A field is a key of the file, its annotation says what may be written there, and the docstring what it means; the
reference is drawn from them. How a file becomes these values is ``config_file``'s, what contradicts what is
``config_checks``'s.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass, field, is_dataclass, replace
from typing import Annotated, Any, get_args, get_type_hints
from urllib.parse import quote, urlsplit, urlunsplit

from holdfast.broker.destinations import nearness
from holdfast.config.values import (
    Count,
    Directory,
    Duration,
    File,
    Flag,
    Kind,
    Name,
    Names,
    Patterns,
    Port,
    ProxyUrl,
    QueueName,
    QueueNames,
    Retention,
    Secret,
    SecretFile,
    SecretVariable,
    SessionCount,
    Size,
    StorePlace,
    Text,
    Url,
    Urls,
    one_of,
)
from holdfast.core.messages import Expects
from holdfast.core.policy import DestinationPolicy, ForwardingPolicy, SourcePolicy, StagingPolicy
from holdfast.core.queues.retention import RetentionPolicy
from holdfast.core.versions import RM_OF_NAME, SOAP, Addressing, Versions
from holdfast.endpoint.journal.policy import JournalPolicy
from holdfast.endpoint.source.profiles import PREFERRED, PROFILES
from holdfast.exceptions import ConfigurationError
from holdfast.http.exchange import HTTPLimits
from holdfast.wire import Limits

MAX_ROUTES = 1_000
"""Routes of a broker: a message that none of the first takes is compared with each."""

PARTITIONS = 64
"""Shared partitions of a queue in a new store, where nothing is said."""
SESSIONS = 64
"""Partitions for sessions of a queue in a new store, where nothing is said."""

_PROFILE: Kind = one_of({name: name for name in PROFILES})
_RM: Kind = one_of({name: name for name in RM_OF_NAME})
_ADDRESSING: Kind = one_of({one.value: one.value for one in Addressing})
_SOAP: Kind = one_of({one.value: one.value for one in SOAP})


@dataclass(frozen=True)
class ServerTLS:
    """TLS of a listener.

    Args:
        certificate: PEM file with its certificate and the chain.
        key: PEM file with the key, if it is not in the same file.
        client_ca: PEM file of authorities; whoever connects must show a certificate that one of them signed.
    """

    certificate: File
    key: File | None = None
    client_ca: File | None = None


@dataclass(frozen=True)
class ClientTLS:
    """TLS towards a destination.

    Args:
        ca: PEM file of the authorities to trust instead of the system's.
        certificate: PEM file with the certificate to show, and its chain.
        key: PEM file with its key, if it is not in the same file.
    """

    ca: File | None = None
    certificate: File | None = None
    key: File | None = None


@dataclass(frozen=True)
class ListenConfig:
    """Where messages are taken.

    Args:
        host: Address to listen at; ``0.0.0.0``: every one of this machine.
        port: Its port; 0: any free one.
        tls: Serves https.
    """

    host: Text = "127.0.0.1"
    port: Port = 8080
    tls: ServerTLS | None = None


@dataclass(frozen=True)
class AdminConfig:
    """Where the broker is watched and steered, and where Spark reads. Keep it private.

    Args:
        enabled: Whether there is such a listener.
        host: Address to listen at.
        port: Its port; 0: any free one.
        token_file: The token that whoever asks must have. Without one here, that in the environment variable
            HOLDFAST_ADMIN_TOKEN counts, if it is set.
        token_env: The same, in an environment variable.
        names: Host names that its clients use, besides addresses, names without a dot, and this machine's. One that
            begins with a dot stands for every name below it, as ".shop.svc" for the services of a Kubernetes namespace.
        tls: Serves https.
    """

    enabled: Flag = True
    host: Text = "127.0.0.1"
    port: Port = 8081
    token_file: SecretFile | None = None
    token_env: SecretVariable | None = None
    names: Names = ()
    tls: ServerTLS | None = None

    @property
    def token(self) -> Secret | None:
        """The token, None if the configuration names none."""
        return self.token_file or self.token_env


@dataclass(frozen=True)
class JournalConfig:
    """The event journal: what happened, and when, in files for whoever reads Parquet.

    Args:
        enabled: Whether there is one.
        directory: Where it is, instead of ``journal`` in the store's directory. A store in a database has none: there
            is no journal then, unless this names a place.
        age: How long files are kept.
        size: How much they may take together; the oldest go first.
        file_age: After how long a file is complete, and becomes Parquet.
        file_size: After how much it is complete before that.
    """

    enabled: Flag = True
    directory: Directory | None = None
    age: Duration | None = 604_800.0
    size: Size | None = 1_073_741_824
    file_age: Duration = 900.0
    file_size: Size = 67_108_864

    def policy(self) -> JournalPolicy | None:
        """How the journal is kept; None: there is none."""
        if not self.enabled:
            return None
        return JournalPolicy(self.directory, self.age, self.size, self.file_age, self.file_size)


@dataclass(frozen=True)
class LimitsConfig:
    """What peers may use.

    Args:
        max_queues: Queues there may be, dead letters and the broker's own not counted.
        max_routed_body: The largest body that is looked into to route it; a larger one that only an XPath could route
            is refused.
        http: What HTTP peers may use.
        envelopes: What one envelope may be like.
    """

    max_queues: Count = 100
    max_routed_body: Size = 1024 * 1024
    http: HTTPLimits = field(default_factory=HTTPLimits)
    envelopes: Limits = field(default_factory=Limits)


@dataclass(frozen=True)
class QueueConfig:
    """A queue.

    Args:
        name: What it is called.
        retention: How long it keeps messages, whoever reads: words, as of ``holdfast serve --retention``. Without any,
            seven days of any size; but as long as there are forwarders, and never was a reader, a message is deleted
            once all of them have passed it.
        max_readers: Cursors of readers; the next one is refused.
        max_messages: Messages it may hold, those included that are kept for readers; of each worker's, if there are
            several. While it holds so many, no further one is accepted: its source keeps it, and tries again. Without
            it the disk is the limit.
    """

    name: QueueName
    retention: Retention | None = None
    max_readers: Count = 1000
    max_messages: Count | None = None

    @property
    def retention_policy(self) -> RetentionPolicy:
        """The retention with everything that was said of it."""
        return replace(self.retention or RetentionPolicy(), max_readers=self.max_readers)


@dataclass(frozen=True)
class HeaderConfig:
    """What a SOAP header must say. Headers of WS-Addressing and WS-ReliableMessaging are not looked at.

    Args:
        name: Its name, ``prefix:local`` with a prefix of ``namespaces``; without a prefix: of no namespace.
        value: Its text, white space at the ends taken off; none: whatever it says.
    """

    name: Text
    value: Patterns = ()


@dataclass(frozen=True)
class RouteConfig:
    """Which messages go where. All that a route says must be so. The first route that takes a message has it.

    Args:
        queues: The queues that they go to.
        to: The message's To.
        action: Its Action.
        header: One of its SOAP headers.
        xpath: What must be true of its body; see below.
        expects: What the senders of these messages expect: ``one_way``, an acknowledgement at once; ``request``, a
            reply from the destination of a forwarder. Without it each message says so, by its ReplyTo.
    """

    queues: QueueNames
    to: Patterns = ()
    action: Patterns = ()
    header: HeaderConfig | None = None
    xpath: Text = ""
    expects: Expects | None = None


@dataclass(frozen=True)
class ProxyConfig:
    """An HTTP proxy.

    Args:
        url: Where it is.
        username: Whom it knows.
        password_file: The password.
        password_env: The same, in an environment variable.
    """

    url: ProxyUrl
    username: Text = ""
    password_file: SecretFile | None = None
    password_env: SecretVariable | None = None

    def location(self) -> str:
        """Its URL with user and password, for who goes through it: a secret."""
        password = self.password_file or self.password_env
        if not self.username or password is None:
            return self.url
        return self.url.replace("://", f"://{quote(self.username, '')}:{quote(password.reveal(), '')}@", 1)


@dataclass(frozen=True)
class CredentialsConfig:
    """What a destination is shown in the HTTP header Authorization: a user and password (Basic), or a token (Bearer).

    Args:
        username: The user.
        password_file: The password.
        password_env: The same, in an environment variable.
        token_file: The token.
        token_env: The same, in an environment variable.
    """

    username: Text = ""
    password_file: SecretFile | None = None
    password_env: SecretVariable | None = None
    token_file: SecretFile | None = None
    token_env: SecretVariable | None = None

    def authorization(self) -> str:
        """The header's value: a secret."""
        token = self.token_file or self.token_env
        if token is not None:
            return f"Bearer {token.reveal()}"
        password = self.password_file or self.password_env
        assert password is not None  # config_checks saw to it
        return "Basic " + base64.b64encode(f"{self.username}:{password.reveal()}".encode()).decode()


@dataclass(frozen=True)
class ForwarderConfig:
    """Sends what comes into a queue on to a destination, reliably.

    Args:
        name: What it is called.
        queue: The queue that it reads.
        to: The destination's address.
        profile: What the destination is, if it is one of those known: it says the versions.
        rm: WS-ReliableMessaging's version; what is not said is found out.
        addressing: WS-Addressing's version.
        soap: SOAP's version.
        offer: Whether a Sequence for replies is offered; found out if it is not said.
        paused: Whether it waits.
        timeout: How long one HTTP exchange may take. A request is not repeated while its exchange is open, so set
            it above the time that the slowest service takes to reply.
        address: The URL of the broker's own listener as the destination reaches it. With it, the destination posts
            replies and acknowledgements there; without it, they come in its HTTP responses. Set it where a lost
            response would lose the reply, as with Apache CXF.
        policy: How it treats what it sends on; each setting before those of ``policies``.
        tls: What is trusted and shown instead of what the system does.
        proxy: An HTTP proxy to go through.
        credentials: What the destination is shown.
    """

    name: Name
    queue: QueueName
    to: Url
    profile: Annotated[str, _PROFILE] | None = None
    rm: Annotated[str, _RM] | None = None
    addressing: Annotated[str, _ADDRESSING] | None = None
    soap: Annotated[str, _SOAP] | None = None
    offer: Flag | None = None
    paused: Flag = False
    timeout: Duration = 60.0
    address: Url | None = None
    policy: ForwardingPolicy = field(default_factory=ForwardingPolicy)
    tls: ClientTLS | None = None
    proxy: ProxyConfig | None = None
    credentials: CredentialsConfig | None = None

    @property
    def may_reply(self) -> bool:
        """Whether replies of the destination can come back."""
        return self.offer is not False or self.address is not None

    @property
    def versions(self) -> tuple[Versions, ...]:
        """What it speaks, or tries, the newest first."""
        if self.profile is not None:
            return (PROFILES[self.profile],)
        rm = RM_OF_NAME[self.rm] if self.rm is not None else None
        return tuple(
            one
            for one in PREFERRED
            if rm in (None, one.rm) and self.addressing in (None, one.addressing) and self.soap in (None, one.soap)
        )


@dataclass(frozen=True)
class PolicyConfig:
    """How what is sent to some destinations is treated.

    Args:
        pattern: Which: an address; ``host`` or ``host:port``; a beginning of addresses with ``*`` behind it; ``*``.
        given: Setting of ForwardingPolicy -> its value, and of ``sending`` and its ``retransmission`` the same again;
            what is not said there is left to the next pattern that fits.
    """

    pattern: str
    given: Mapping[str, Any]


@dataclass(frozen=True)
class BrokerConfig:
    """A broker. Without a file it is all as by default.

    Args:
        store: Where everything is kept.
        store_password_file: The password of the database.
        store_password_env: The same, in an environment variable.
        partitions: Of each queue, for one-way messages; a Sequence stays in one, so its order is kept. Fixed when the
            store is made; without it 64 in a new store, and as many as there are in another.
        sessions: Partitions of each queue, behind those, for one client each that sends requests: it gets an outbound
            Sequence of its own. A store may get more of them later, never fewer; without it 64 in a new store, and
            as many as there are in another.
        workers: Processes that share the Sequences.
        allow_addresses: URLs at and below which a peer may name addresses for what it is sent, as of
            ``Destination(allow_addresses=...)``.
        default_queue: The queue of what no route takes. Without it such a message is refused, if there are routes; if
            there are none, all go to the first queue.
        namespaces: Prefix -> namespace, for routes.
        listen: Where messages are taken.
        admin: Where the broker is watched and steered.
        journal: What happened, and when.
        sequences: How Sequences are treated that come in.
        limits: What peers may use.
        sinks: What writers outside, such as Spark queries, may stage.
        queues: The queues, by their names, the first one first.
        routes: Which messages go to which queues.
        forwarders: What is sent on, by their names.
        policies: Limits and timers of what is sent, by the address it goes to.
    """

    store: StorePlace = "broker"
    store_password_file: SecretFile | None = None
    store_password_env: SecretVariable | None = None
    partitions: Count | None = None
    sessions: SessionCount | None = None
    workers: Count = 1
    allow_addresses: Urls = ()
    default_queue: QueueName | None = None
    namespaces: Mapping[str, str] = field(default_factory=dict)
    listen: ListenConfig = field(default_factory=ListenConfig)
    admin: AdminConfig = field(default_factory=AdminConfig)
    journal: JournalConfig = field(default_factory=JournalConfig)
    sequences: DestinationPolicy = field(default_factory=DestinationPolicy)
    limits: LimitsConfig = field(default_factory=LimitsConfig)
    sinks: StagingPolicy = field(default_factory=StagingPolicy)
    queues: tuple[QueueConfig, ...] = (QueueConfig("inbox"),)
    routes: tuple[RouteConfig, ...] = ()
    forwarders: tuple[ForwarderConfig, ...] = ()
    policies: tuple[PolicyConfig, ...] = ()

    def store_location(self) -> str:
        """Where the store is, with the password of a database: a secret."""
        password = self.store_password_file or self.store_password_env
        if password is None:
            return self.store
        parts = urlsplit(self.store)
        user, _, host = parts.netloc.rpartition("@")
        return urlunsplit(parts._replace(netloc=f"{user}:{quote(password.reveal(), '')}@{host}"))

    def usual_policy(self) -> SourcePolicy:
        """How Sequences are treated by which the broker sends what is its own: replies, by the pattern ``*`` alone."""
        return resolved_policy(self.policies, "").sending or SourcePolicy()

    def policy_for(self, address: str) -> SourcePolicy:
        """The same for those to an address. Where patterns contradict each other there, ``*`` alone counts: addresses
        of peers are not known when the file is read."""
        try:
            return resolved_policy(self.policies, address).sending or SourcePolicy()
        except ConfigurationError:
            return self.usual_policy()


def resolved_policy(
    policies: tuple[PolicyConfig, ...], address: str, own: Mapping[str, Any] | None = None
) -> ForwardingPolicy:
    """What is said of one destination: its own first, then what fits its address, the nearest first, then defaults.

    Raises:
        ConfigurationError: what comes together contradicts each other.
    """
    fitting = [(near, one.given) for one in policies if (near := nearness(one.pattern, address)) is not None]
    said: dict[str, Any] = {}
    for _, given in sorted(fitting, key=lambda found: found[0]):
        said = _merged(said, given)
    return _built(ForwardingPolicy, _merged(said, own or {}))  # type: ignore[no-any-return]


def _merged(far: Mapping[str, Any], near: Mapping[str, Any]) -> dict[str, Any]:
    """Both, the nearer one before the other, table by table."""
    merged = dict(far)
    for name, value in near.items():
        merged[name] = _merged(merged.get(name) or {}, value) if isinstance(value, Mapping) else value
    return merged


def _built(cls: type[Any], said: Mapping[str, Any]) -> Any:
    """A settings class of what is said; tables in it are settings classes, too."""
    values = {
        name: _built(inner_class(cls, name), value) if isinstance(value, Mapping) else value
        for name, value in said.items()
    }
    return cls(**values)


def inner_class(cls: type[Any], name: str) -> type[Any]:
    """The settings class that a field holds, or None instead of."""
    hint = get_type_hints(cls)[name]
    return next(one for one in (*get_args(hint), hint) if isinstance(one, type) and is_dataclass(one))
