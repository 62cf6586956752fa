"""Settings of a broker: frozen dataclasses with defaults. Owns every key of the configuration file.

Each field is a key. Its annotation defines the accepted values and its docstring the meaning; the reference page is
generated from both. ``config_file`` reads a file into these classes, ``config_checks`` finds contradictions.
"""

from __future__ import annotations

import base64
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, is_dataclass, replace
from pathlib import Path
from typing import Annotated, Any, get_args, get_type_hints
from urllib.parse import quote, urlsplit, urlunsplit

from holdfast.broker.cluster_config import OWN_CACHE, ClusterConfig
from holdfast.broker.destinations import nearness
from holdfast.broker.signature_config import (
    AssertionsConfig,
    MessageCredentialsConfig,
    SignatureConfig,
    SymmetricConfig,
)
from holdfast.config.values import (
    RETENTION,
    TEXT,
    Glob,
    Kind,
    Name,
    Namespace,
    NewFile,
    ProxyUrl,
    PublicUrl,
    QueueName,
    SecretFile,
    SecretVariable,
    StorePlace,
    Unfit,
    Url,
    one_of,
    read_url,
)
from holdfast.core.messages import Expects
from holdfast.core.policy import DestinationPolicy, ForwardingPolicy, SourcePolicy, StagingPolicy
from holdfast.core.queues.retention import RetentionPolicy
from holdfast.core.versions import RM_OF_NAME, SOAP, Addressing, Versions
from holdfast.endpoint.admin.token import read_token
from holdfast.endpoint.destination.forwarded_services import ServiceWSDL
from holdfast.endpoint.destination.http_settings import DestinationHTTP
from holdfast.endpoint.journal.policy import JournalPolicy
from holdfast.endpoint.listener_settings import AdminAddress, AdminListener, MessageAddress
from holdfast.endpoint.source.profiles import BY_PREFERENCE, PREFERRED, PROFILES
from holdfast.exceptions import ConfigurationError
from holdfast.http.exchange import HTTPLimits
from holdfast.http.tls import ClientTLS, ServerTLS
from holdfast.security.freshness import Freshness
from holdfast.security.users import Users
from holdfast.settings import MAX_WORKERS, Bytes, Seconds, SecondsOrZero, Within
from holdfast.store.address import is_kafka, with_password_file
from holdfast.wire import Limits

MAX_ROUTES = 1_000
"""Maximum number of routes. The router compares a message with each of them until one matches."""

PARTITIONS = 64
"""Default number of shared partitions of a queue in a new store."""
SESSIONS = 64
"""Default number of session partitions of a queue in a new store."""
MAX_PARTITIONS = 1024
"""Maximum number of shared partitions, as of session partitions: each has its place in memory."""


def _users(value: Any, base: Path) -> Users:
    """Read a file of users. Errors do not show the value, because it may be a password itself."""
    if not isinstance(value, str) or not value:
        raise Unfit("the value is not the path of a file", "Write the path in quotes.")
    try:
        return Users(base / value)
    except ConfigurationError as error:
        raise Unfit(error.message, error.remedy) from None


UsersFile = Annotated[Users, Kind("the path of a file with lines `NAME:PASSWORD`", _users)]


def _wsdl(value: Any, base: Path) -> ServiceWSDL:
    text = str(read_url(value, base)) if isinstance(value, str) and "://" in value else str(TEXT.read(value, base))
    try:
        return ServiceWSDL(text if "://" in text else str(base / text))
    except ConfigurationError as error:
        raise Unfit(error.message.removesuffix("."), error.remedy) from None


WSDLFile = Annotated[ServiceWSDL, Kind("the path of a file, or an http or https URL", _wsdl)]
_PROFILE: Kind = one_of(PROFILES)
_RM: Kind = one_of(RM_OF_NAME)
_ADDRESSING: Kind = one_of([one.value for one in Addressing])
_SOAP: Kind = one_of([one.value for one in SOAP])


@dataclass(frozen=True)
class ListenConfig(MessageAddress):
    """The listener for messages.

    Args:
        public_url: URL at which clients reach the broker, if a reverse proxy or a gateway changes the host, the port or
            the path, as in ``DestinationHTTP(public_url=...)``.
        tls: Certificate and key. With them, the listener serves https.
    """

    public_url: PublicUrl | None = None
    tls: ServerTLS | None = None


@dataclass(frozen=True)
class AdminConfig(AdminAddress):
    """The admin listener, which operators and Spark use. Keep it private.

    Args:
        enabled: Whether the broker opens the listener.
        token_file: File with the token that clients must send. Without a token here, the broker uses the environment
            variable HOLDFAST_ADMIN_TOKEN if it is set.
        token_env: Environment variable with the token.
        metrics_token_file: File with another token, with which a client may only read ``/metrics``.
        tls: Certificate and key. With them, the listener serves https.
    """

    enabled: bool = True
    token_file: SecretFile | None = None
    token_env: SecretVariable | None = None
    metrics_token_file: SecretFile | None = None
    tls: ServerTLS | None = None

    def listener(self) -> AdminListener:
        """Return the listener with its certificate and token.

        Raises:
            ConfigurationError: A file is not valid.
        """
        context = self.tls.context() if self.tls is not None else None
        metrics = self.metrics_token_file
        metrics_token = metrics.reveal() if metrics is not None else None
        return AdminListener(self.host, self.port, self.names, context, self.token(), metrics_token=metrics_token)

    def token(self) -> str | None:
        """Return the token that clients must send; None without one.

        Raises:
            ConfigurationError: The one in the environment is not valid.
        """
        secret = self.token_file or self.token_env
        return secret.reveal() if secret is not None else read_token()


@dataclass(frozen=True)
class SecurityConfig:
    """Who may send messages: the users of WS-Security's UsernameToken, or those who sign them.

    Args:
        users: File with a line ``NAME:PASSWORD`` for each user. With it, the broker refuses every request without a
            valid user name and password, also those of destinations that post to a forwarder's ``address``.
        require_digest: Refuse passwords in plain text.
        require_timestamp: Refuse messages without a Timestamp.
        life: Maximum age of a Timestamp, a signature or a digest.
        skew: How far a sender's clock may be ahead or behind.
        signature: Messages signed by certificates. With it, the broker refuses every request without a valid signature,
            and signs its answers.
        symmetric: Messages that are signed and encrypted with a symmetric key. With it, the broker refuses every other
            request. The table names certificates of senders, or ``users`` has their names.
        assertions: SAML assertions. With it, the broker refuses every request without a valid one.
        timestamp_alone: Refuse requests without a fresh Timestamp, and demand nothing else: everybody may send. It
            suits senders whose policy demands IncludeTimestamp with TransportBinding, and no token.
        nonces: File that remembers the nonces of digests, signatures, and the tokens of WCF clients over restarts, and
            for all workers; the directory with its name and ``-nonces``, next to it, has nonces and signatures. The
            default is ``security.db`` in the store's directory; without one, it is in memory. The nodes of a cluster
            remember them in their database, or in a topic of Kafka.
    """

    users: UsersFile | None = None
    signature: SignatureConfig | None = None
    symmetric: SymmetricConfig | None = None
    assertions: AssertionsConfig | None = None
    timestamp_alone: bool = False
    require_digest: bool = False
    require_timestamp: bool = False
    life: Seconds = Freshness.life
    skew: SecondsOrZero = Freshness.skew
    nonces: NewFile | None = None

    @property
    def freshness(self) -> Freshness:
        """How old a message may be, and how far the clocks may differ."""
        return Freshness(self.life, self.skew)


@dataclass(frozen=True)
class JournalConfig(JournalPolicy):
    """The event journal: every event of a message with its time, in Parquet files.

    Args:
        enabled: Whether the broker writes a journal.
    """

    enabled: bool = True


@dataclass(frozen=True)
class LimitsConfig:
    """Limits for peers.

    Args:
        max_queues: Number of queues. Dead letters and the broker's internal queues do not count.
        max_routed_body: Largest body that a route's XPath may read. The broker refuses a larger message if no route
            without an XPath matches it.
        http: Limits for HTTP peers.
        envelopes: Limits for one envelope.
    """

    max_queues: int = 100
    max_routed_body: Bytes = 1024 * 1024
    http: HTTPLimits = field(default_factory=HTTPLimits)
    envelopes: Limits = field(default_factory=Limits)


@dataclass(frozen=True)
class QueueConfig:
    """A queue.

    Args:
        name: Name of the queue.
        retention: How long the queue keeps messages, in the words of ``holdfast serve --retention``. By default it
            keeps them for seven days, whatever their size. If only forwarders have ever read the queue, the broker
            deletes a message as soon as every forwarder has delivered it.
        max_readers: Number of readers' cursors. The broker refuses further readers.
        max_messages: Number of messages that the queue holds, including those kept for readers; with several workers,
            the number for each. While the queue is full, the broker accepts no further message: the source keeps the
            message and retransmits it. Without this setting, the disk is the limit.
    """

    name: QueueName
    retention: Annotated[RetentionPolicy, RETENTION] | None = None
    max_readers: int = 1000
    max_messages: int | None = None

    @property
    def retention_policy(self) -> RetentionPolicy:
        """The retention, with the limit of readers."""
        return replace(self.retention or RetentionPolicy(), max_readers=self.max_readers)


@dataclass(frozen=True)
class HeaderConfig:
    """A condition on a SOAP header. It never matches headers of WS-Addressing and WS-ReliableMessaging.

    Args:
        name: Name of the header, as ``prefix:local`` with a prefix of ``namespaces``. A name without a prefix has no
            namespace.
        value: Text of the header, without white space at its ends. Without a value, every text matches.
    """

    name: str
    value: tuple[Glob, ...] = ()


@dataclass(frozen=True)
class RouteConfig:
    """A rule that assigns messages to queues. Every condition must match. The first matching route decides.

    Args:
        queues: Queues that the messages go to.
        to: The message's To.
        action: The message's Action.
        header: A SOAP header of the message.
        user: The user that sent the message, as ``[security]`` proved.
        xpath: Condition on the message's body; see below.
        expects: What the senders of these messages expect: ``one_way``, an immediate acknowledgement, or ``request``,
            a reply from a forwarder's destination. By default, each message's ReplyTo decides.
    """

    queues: tuple[QueueName, ...]
    to: tuple[Glob, ...] = ()
    action: tuple[Glob, ...] = ()
    header: HeaderConfig | None = None
    user: tuple[Glob, ...] = ()
    xpath: str = ""
    expects: Expects | None = None


@dataclass(frozen=True)
class ProxyConfig:
    """An HTTP proxy.

    Args:
        url: URL of the proxy.
        username: User name for the proxy.
        password_file: File with the password.
        password_env: Environment variable with the password.
    """

    url: ProxyUrl
    username: str = ""
    password_file: SecretFile | None = None
    password_env: SecretVariable | None = None

    def location(self) -> str:
        """The URL with user name and password: a secret."""
        password = self.password_file or self.password_env
        if not self.username or password is None:
            return self.url
        return self.url.replace("://", f"://{quote(self.username, '')}:{quote(password.reveal(), '')}@", 1)


@dataclass(frozen=True)
class CredentialsConfig:
    """Credentials in the HTTP header Authorization: user name and password (Basic), or a token (Bearer).

    Args:
        username: User name.
        password_file: File with the password.
        password_env: Environment variable with the password.
        token_file: File with the token.
        token_env: Environment variable with the token.
    """

    username: str = ""
    password_file: SecretFile | None = None
    password_env: SecretVariable | None = None
    token_file: SecretFile | None = None
    token_env: SecretVariable | None = None

    def authorization(self) -> str:
        """The value of the Authorization header: a secret."""
        token = self.token_file or self.token_env
        if token is not None:
            return f"Bearer {token.reveal()}"
        password = self.password_file or self.password_env
        assert password is not None  # config_checks saw to it
        return "Basic " + base64.b64encode(f"{self.username}:{password.reveal()}".encode()).decode()


@dataclass(frozen=True)
class ForwarderConfig:
    """Forwards the messages of a queue to a destination, reliably.

    Args:
        name: Name of the forwarder.
        queue: Queue that the forwarder reads.
        to: Address of the destination.
        profile: Kind of the destination, such as ``wcf``. It sets the versions.
        rm: Version of WS-ReliableMessaging. The forwarder detects every version that you do not set.
        addressing: Version of WS-Addressing.
        soap: Version of SOAP.
        offer: Whether the forwarder offers a Sequence for replies. By default it detects whether the destination
            accepts one. Without such a Sequence the broker still returns replies that come in the HTTP response.
        wsdl: WSDL 1.1 of the destination, as a file or URL. A GET with ``?wsdl`` at an address from which routes send
            its operations to ``queue`` returns it with the broker's address and policy, and likewise the documents that
            it imports. The broker reads a file at its start, and fetches a URL when a client asks for it.
        paused: Whether the forwarder waits instead of sending.
        timeout: How long one HTTP exchange may take. The forwarder does not retransmit a request while its exchange is
            open, so set a longer time than the slowest service takes to reply.
        address: URL of the broker's own listener, as the destination reaches it. With it, the destination posts
            replies and acknowledgements there. Without it, they arrive in its HTTP responses. Set it if a lost
            response would lose the reply, as with Apache CXF.
        poll: Whether the forwarder polls the destination for replies and acknowledgements (WS-MakeConnection). Set it
            if the destination cannot connect to this broker and some replies take longer than ``timeout``.
        policy: Limits and timers. Each setting here overrides ``policies``.
        tls: Certificate authorities and client certificate, instead of the system's.
        proxy: HTTP proxy to the destination.
        credentials: HTTP credentials for the destination.
        security: User name and password in each message, or its signature, for destinations with WS-Security.
    """

    name: Name
    queue: QueueName
    to: Url
    profile: Annotated[str, _PROFILE] | None = None
    rm: Annotated[str, _RM] | None = None
    addressing: Annotated[str, _ADDRESSING] | None = None
    soap: Annotated[str, _SOAP] | None = None
    offer: bool | None = None
    wsdl: WSDLFile | None = None
    paused: bool = False
    timeout: Seconds = 60.0
    address: Url | None = None
    poll: bool = False
    policy: ForwardingPolicy = field(default_factory=ForwardingPolicy)
    tls: ClientTLS | None = None
    proxy: ProxyConfig | None = None
    credentials: CredentialsConfig | None = None
    security: MessageCredentialsConfig | None = None

    @property
    def has_replies(self) -> bool:
        """Whether replies may also come later than in the HTTP response."""
        return self.offer is not False or self.address is not None or self.poll

    @property
    def versions(self) -> tuple[Versions, ...]:
        """The versions that the forwarder speaks or tries, in the order of the attempts."""
        if self.profile is not None:
            return (PROFILES[self.profile],)
        rm = RM_OF_NAME[self.rm] if self.rm is not None else None
        return tuple(
            one
            for one in (BY_PREFERENCE if self.rm or self.addressing else PREFERRED)
            if rm in (None, one.rm) and self.addressing in (None, one.addressing) and self.soap in (None, one.soap)
        )


@dataclass(frozen=True)
class PolicyConfig:
    """Limits and timers for the destinations that match a pattern.

    Args:
        pattern: An address, ``host``, ``host:port``, the beginning of an address followed by ``*``, or ``*``. Or
            ``name:`` and the name of a forwarder, or ``action:`` and an action, each perhaps followed by ``*``. An
            action matches the forwarders of queues that receive only messages with such actions from their routes.
        given: Settings of ForwardingPolicy with their values; ``sending`` and its ``retransmission`` are mappings of
            the same kind. The next matching pattern provides the settings that are missing here.
    """

    pattern: str
    given: Mapping[str, Any]


@dataclass(frozen=True)
class BrokerConfig:
    """A broker. Without a configuration file, every setting has its default.

    Args:
        store: Directory, or URL of a database, of the broker's store.
        store_password_file: File with the password of the database or of Kafka. Running processes follow its content.
        store_password_env: Environment variable with the password of the database or of Kafka.
        partitions: Number of partitions of each queue for one-way messages. A Sequence stays in one partition, which
            keeps its order. The number is fixed when the store is created: 64 by default.
        sessions: Number of further partitions of each queue, each for one client that sends requests. Such a client
            gets a separate outbound Sequence. You can raise the number later, but not lower it. A new store has 64 by
            default.
        workers: Number of processes that share the Sequences.
        allow_addresses: URLs at or below which a peer may name its reply and acknowledgement addresses, as in
            ``DestinationHTTP(allow_addresses=...)``.
        default_queue: Queue of the messages that match no route. Without it, the broker refuses such a message. A
            broker without routes puts every message into the first queue.
        namespaces: Prefixes that routes use, each with its namespace.
        listen: The listener for messages.
        admin: The listener for operators and Spark.
        cluster: Makes the broker one of several nodes that share the database or topic of ``store``.
        security: Who may send messages.
        journal: The event journal.
        sequences: Limits and timers of inbound Sequences.
        limits: Limits for peers.
        sinks: Limits of what external writers, such as Spark queries, stage.
        queues: The queues by name, in the order of the file.
        routes: Rules that assign messages to queues.
        forwarders: The forwarders by name.
        policies: Limits and timers for sending. PATTERN is an address, ``host``, ``host:port``, ``name:FORWARDER`` or
            ``action:ACTION``, or the beginning of an address, name or action followed by ``*``, or ``*``. An action
            matches the forwarders of queues to which routes send only messages with such actions.
    """

    store: StorePlace = "broker"
    store_password_file: SecretFile | None = None
    store_password_env: SecretVariable | None = None
    partitions: Annotated[int, Within(1, MAX_PARTITIONS)] | None = None
    sessions: Annotated[int, Within(0, 1024)] | None = None
    workers: Annotated[int, Within(1, MAX_WORKERS)] = 1
    allow_addresses: tuple[Url, ...] = ()
    default_queue: QueueName | None = None
    namespaces: Mapping[str, Namespace] = field(default_factory=dict)
    listen: ListenConfig = field(default_factory=ListenConfig)
    admin: AdminConfig = field(default_factory=AdminConfig)
    cluster: ClusterConfig | None = None
    security: SecurityConfig = field(default_factory=SecurityConfig)
    journal: JournalConfig = field(default_factory=JournalConfig)
    sequences: DestinationPolicy = field(default_factory=DestinationPolicy)
    limits: LimitsConfig = field(default_factory=LimitsConfig)
    sinks: StagingPolicy = field(default_factory=StagingPolicy)
    queues: tuple[QueueConfig, ...] = (QueueConfig("inbox"),)
    routes: tuple[RouteConfig, ...] = ()
    forwarders: tuple[ForwarderConfig, ...] = ()
    policies: tuple[PolicyConfig, ...] = ()

    def store_location(self) -> str:
        """The store's location, with the password of a database, or with the file that contains it: a secret. In a URL
        of Kafka, the name of the node replaces ``{node}``.

        Raises:
            ConfigurationError: The environment variable contains no valid name.
        """
        store = self.store
        if is_kafka(store):
            store = store.replace(OWN_CACHE, (self.cluster or ClusterConfig()).node_name())
        password = self.store_password_file or self.store_password_env
        if password is None:
            return store
        if self.store_password_file is not None:
            return with_password_file(store, password.origin)
        parts = urlsplit(store)
        user, _, host = parts.netloc.rpartition("@")
        return urlunsplit(parts._replace(netloc=f"{user}:{quote(password.reveal(), '')}@{host}"))

    def http(self) -> DestinationHTTP:
        """What peers may do with the broker, and the policies of the Sequences to them."""
        return DestinationHTTP(
            public_url=self.listen.public_url,
            allow_addresses=self.allow_addresses,
            limits=self.limits.http,
            envelopes=self.limits.envelopes,
            staging=self.sinks,
            policy=self.usual_policy(),
            policy_for=self.policy_for,
        )

    def usual_policy(self) -> SourcePolicy:
        """The policy of the Sequences in which the broker sends replies: that of the pattern ``*``."""
        return resolved_policy(self.policies, "").sending or SourcePolicy()

    def policy_for(self, address: str) -> SourcePolicy:
        """The policy of the Sequences to an address.

        Where the matching patterns contradict each other, only ``*`` applies: the broker does not know the addresses
        of peers when it reads the file, so it cannot refuse the file for them.
        """
        try:
            return resolved_policy(self.policies, address).sending or SourcePolicy()
        except ConfigurationError:
            return self.usual_policy()


def resolved_policy(
    policies: tuple[PolicyConfig, ...],
    address: str,
    own: Mapping[str, Any] | None = None,
    name: str = "",
    actions: Collection[str] = (),
) -> ForwardingPolicy:
    """Return the policy of one destination: its own settings, then matching patterns, nearest first, then defaults.

    Args:
        policies: The policies by pattern.
        address, name, actions: As for :func:`nearness`.
        own: The destination's own settings.

    Raises:
        ConfigurationError: The settings contradict each other.
    """
    fitting = [
        (near, one.given) for one in policies if (near := nearness(one.pattern, address, name, actions)) is not None
    ]
    said: dict[str, Any] = {}
    for _, given in sorted(fitting, key=lambda found: found[0]):
        said = _merged(said, given)
    return _built(ForwardingPolicy, _merged(said, own or {}))  # type: ignore[no-any-return]


def actions_of(queue: str, routes: Iterable[RouteConfig], default: str | None) -> frozenset[str]:
    """Return the actions that routes send to a queue, as patterns; none if a message of any action may get there.

    Args:
        default: The queue of messages without a route; None: such messages are refused.
    """
    mine = [one for one in routes if queue in one.queues]
    if queue == default or not all(one.action for one in mine):
        return frozenset()
    return frozenset(str(action) for one in mine for action in one.action)


def _merged(far: Mapping[str, Any], near: Mapping[str, Any]) -> dict[str, Any]:
    """Merge two tables. The nearer one wins, also in nested tables."""
    merged = dict(far)
    for name, value in near.items():
        merged[name] = _merged(merged.get(name) or {}, value) if isinstance(value, Mapping) else value
    return merged


def _built(cls: type[Any], said: Mapping[str, Any]) -> Any:
    """Build a settings class, and those of its nested tables, from plain values."""
    values = {
        name: _built(inner_class(cls, name), value) if isinstance(value, Mapping) else value
        for name, value in said.items()
    }
    return cls(**values)


def inner_class(cls: type[Any], name: str) -> type[Any]:
    """The settings class of a field that holds one, optional or not."""
    hint = get_type_hints(cls)[name]
    return next(one for one in (*get_args(hint), hint) if isinstance(one, type) and is_dataclass(one))
