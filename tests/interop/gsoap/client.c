/* An RM Source built with gSOAP, for interoperability tests: sends COUNT messages on one Sequence and does not
   stop until the RM Destination has acknowledged them all (and, two-way, answered them all), or it gives up.

   client --mode oneway|twoway --count N --url URL [--key K] [--soap 1.1|1.2] [--rounds R] [--pause MS] [--ids yes|no]

   With --ids no, requests have no MessageID, as in the plugin's documentation.
   The RM version is the one it was built for (rm10.h or rm11.h). Each event is one JSON line on stdout; the last
   line is {"sent":N,"acked":N,"replies":[...]}. Exit code 0: all acknowledged, and every reply correct, exactly
   once; 1: not; 2: wrong usage.

   One-way messages are first sent without a second try; what is then unacknowledged goes again through
   soap_wsrm_resend, with a stand-alone AckRequested to learn of it, because the plugin reads no acknowledgement
   in the answer to a resent message. Two-way messages are retried one by one until the reply is there
   (soap_wsrm_check_retry), because the plugin throws away the reply to a resent message. */

#include "interop.nsmap"
#include "json.h"
#include "wsrmapi.h"

#include <signal.h>
#include <string.h>
#include <unistd.h>

#define ACTION_NOTIFY "urn:holdfast:interop/notify"
#define ACTION_ECHO "urn:holdfast:interop/echo"
#define SEQUENCE_LIFETIME_MS 600000

struct options
{
  const char *url, *key;
  int twoway, soap11, rounds, no_ids;
  ULONG64 count;
  useconds_t pause;
};

struct reply
{
  ULONG64 sequence_number; /* of the offered Sequence; 0 when the reply carried none */
  ULONG64 number;
  int correct;
};

static void event(const char *name, ULONG64 number, int status)
{
  printf("{\"event\":\"%s\",\"number\":%llu,\"status\":%d}\n", name, (unsigned long long)number, status);
  fflush(stdout);
}

/* A failed exchange, with the fault's words where there is one. 0: nothing came back (SOAP_EOF is -1). */
static void failed(struct soap *soap, const char *what, ULONG64 number)
{
  printf("{\"event\":\"failed\",\"what\":\"%s\",\"number\":%llu,\"status\":%d,\"subcode\":", what,
         (unsigned long long)number, soap->error);
  json_string(stdout, soap->fault ? soap_fault_subcode(soap) : NULL);
  fputs(",\"reason\":", stdout);
  json_string(stdout, soap->fault ? *soap_faultstring(soap) : NULL);
  fputs("}\n", stdout);
  fflush(stdout);
}

/* Nothing came back, or HTTP said "try again": the exchange may be repeated. A SOAP fault may not. */
static int repeatable(int error)
{
  return error == SOAP_EOF || error == SOAP_TCP_ERROR || error == SOAP_NO_DATA || error == 202 ||
         (error >= 500 && error < 600);
}

/* Read an answer whose body does not matter: a 202, an empty-bodied envelope with acknowledgements, or a fault.
   soap_recv_empty_response would throw the acknowledgements away unread. */
static int receive_headers(struct soap *soap)
{
  if (soap_begin_recv(soap))
  {
    if (soap->error == SOAP_NO_DATA || soap->error == 202)
      soap->error = SOAP_OK;
    return soap_closesock(soap);
  }
  if (soap_envelope_begin_in(soap) || soap_recv_header(soap) || soap_body_begin_in(soap))
    return soap_closesock(soap);
  if (!soap_recv_fault(soap, 1) && !soap->error)
    if (soap_body_end_in(soap) || soap_envelope_end_in(soap) || soap_end_recv(soap))
      return soap_closesock(soap);
  return soap_closesock(soap);
}

/* How many of the first `count` messages no acknowledgement has covered yet. The plugin drops a message from this
   table when, and only when, a range it has read covers the number. */
static ULONG64 unacknowledged(soap_wsrm_sequence_handle seq, ULONG64 count)
{
  ULONG64 i, left = 0;
  for (i = 0; i < count && i < seq->num; i++)
    if (seq->messages[i])
      left++;
  return left;
}

static int create(struct soap *soap, const struct options *options, soap_wsrm_sequence_handle *seq)
{
  int attempt;
  for (attempt = 1; attempt <= options->rounds; attempt++)
  {
    int error = options->twoway
      ? soap_wsrm_create_offer(soap, options->url, NULL, NULL, SEQUENCE_LIFETIME_MS, NoDiscard, NULL, seq)
      : soap_wsrm_create(soap, options->url, NULL, SEQUENCE_LIFETIME_MS, NULL, seq);
    if (!error)
    {
      fputs("{\"event\":\"created\",\"identifier\":", stdout);
      json_string(stdout, (*seq)->id);
      fputs("}\n", stdout);
      return SOAP_OK;
    }
    failed(soap, "create", 0);
    if (*seq)
      soap_wsrm_seq_free(soap, *seq);
    *seq = NULL;
    if (!repeatable(error))
      return error;
    usleep(options->pause);
  }
  return SOAP_ERR;
}

/* Send every message once. What got no answer stays in the plugin's list of unacknowledged messages. */
static int send_oneway(struct soap *soap, const struct options *options, soap_wsrm_sequence_handle seq, char *body)
{
  ULONG64 number;
  for (number = 1; number <= options->count; number++)
  {
    if (soap_wsrm_request_acks(soap, seq, soap_wsa_rand_uuid(soap), ACTION_NOTIFY))
      return soap->error;
    if (soap_send_t__notify(soap, seq->to, ACTION_NOTIFY, (char *)options->key, number, body) ||
        receive_headers(soap))
    {
      failed(soap, "notify", number);
      if (!repeatable(soap->error))
        return soap->error;
    }
    else
      event("sent", number, soap->status);
  }
  return SOAP_OK;
}

/* Ask for acknowledgements in a message of its own. */
static int ask(struct soap *soap, soap_wsrm_sequence_handle seq)
{
  struct wsrm__AckRequestedType asked;
  soap->header = NULL;
  if (soap_wsa_request(soap, soap_wsa_rand_uuid(soap), seq->to, SOAP_NAMESPACE_OF_wsrm "/AckRequested"))
    return soap->error;
  soap_default_wsrm__AckRequestedType(soap, &asked);
  asked.Identifier = (char *)seq->id;
  soap->header->__sizeAckRequested = 1;
  soap->header->wsrm__AckRequested = &asked;
  if (!soap_send___wsrm__AckRequested(soap, seq->to, SOAP_NAMESPACE_OF_wsrm "/AckRequested"))
    receive_headers(soap);
  return soap->error;
}

/* Resend and ask until nothing up to `count` is unacknowledged, or the rounds are used up. */
static int settle(struct soap *soap, const struct options *options, soap_wsrm_sequence_handle seq, ULONG64 count)
{
  struct SOAP_ENV__Header *last_reply = soap->header; /* soap_wsrm_close acknowledges the reply it finds there */
  int round;
  for (round = 1; round <= options->rounds && unacknowledged(seq, count); round++)
  {
    /* With acknowledgements left in the header, soap_wsrm_resend waits for a lock that it holds itself. */
    soap->header = NULL;
    event("resend", unacknowledged(seq, count), round);
    if (soap_wsrm_resend(soap, seq, 0, 0))
      failed(soap, "resend", 0);
    soap->omode &= ~SOAP_ENC_PLAIN; /* the plugin leaves this set when a resend breaks off while sending */
    if (ask(soap, seq))
    {
      failed(soap, "ask", 0);
      if (!repeatable(soap->error))
        return soap->error;
    }
    if (unacknowledged(seq, count))
      usleep(options->pause);
  }
  soap->header = last_reply;
  return unacknowledged(seq, count) ? SOAP_ERR : SOAP_OK;
}

/* One request until its reply has come. The number, the MessageID and the body stay the same in every try. */
static int request(struct soap *soap, const struct options *options, soap_wsrm_sequence_handle seq, ULONG64 number,
                   char *body, struct reply *reply)
{
  struct t__echoResponse response;
  struct SOAP_ENV__Header header;
  int attempt;
  if (soap_wsrm_request_acks(soap, seq, options->no_ids ? NULL : soap_wsa_rand_uuid(soap), ACTION_ECHO))
    return soap->error;
  header = *soap->header;
  for (attempt = 1; attempt <= options->rounds; attempt++)
  {
    if (!soap_call_t__echo(soap, seq->to, ACTION_ECHO, (char *)options->key, number, body, &response))
    {
      reply->sequence_number = soap->header && soap->header->wsrm__Sequence
        ? soap->header->wsrm__Sequence->MessageNumber : 0;
      reply->number = response.number;
      reply->correct = response.number == number && response.key && !strcmp(response.key, options->key) &&
                       response.body && !strcmp(response.body, body);
      event("reply", number, attempt);
      return SOAP_OK;
    }
    failed(soap, "echo", number);
    if (!repeatable(soap->error))
      return soap->error;
    soap_header(soap); /* the request's headers again: receiving has dropped them, or overwritten them */
    *soap->header = header;
    if (soap_wsrm_check_retry(soap, seq))
      return soap->error;
    usleep(options->pause);
  }
  return SOAP_ERR;
}

static int send_twoway(struct soap *soap, const struct options *options, soap_wsrm_sequence_handle seq, char *body,
                       struct reply *replies)
{
  ULONG64 number;
  for (number = 1; number <= options->count; number++)
    if (request(soap, options, seq, number, body, &replies[number - 1]))
      return soap->error ? soap->error : SOAP_ERR;
  return SOAP_OK;
}

/* RM 1.1: CloseSequence until it is answered. RM 1.0: LastMessage, resent like any other message. */
static int close_sequence(struct soap *soap, const struct options *options, soap_wsrm_sequence_handle seq)
{
  int attempt;
  for (attempt = 1; attempt <= options->rounds; attempt++)
  {
    int error = soap_wsrm_close(soap, seq, NULL);
    event("close", seq->num, error);
    if (!error)
      return SOAP_OK;
    failed(soap, "close", 0);
    if (!repeatable(error))
      return error;
#ifdef SOAP_WSRM_2005
    return settle(soap, options, seq, seq->num); /* a second soap_wsrm_close would take a new number */
#endif
    usleep(options->pause);
  }
  return SOAP_ERR;
}

static int terminate(struct soap *soap, const struct options *options, soap_wsrm_sequence_handle seq)
{
  int attempt;
  for (attempt = 1; attempt <= options->rounds; attempt++)
  {
    int error = soap_wsrm_terminate(soap, seq, NULL);
    event("terminate", seq->num, error);
    if (!error)
      return SOAP_OK;
    failed(soap, "terminate", 0);
    /* A fault after a lost answer says that the first try did its work. RM 1.0 has no answer to
       TerminateSequence; what the plugin expects there, and what it makes of it, does not matter. */
    if (!repeatable(error))
#ifdef SOAP_WSRM_2005
      return SOAP_OK;
#else
      return attempt > 1 ? SOAP_OK : error;
#endif
    usleep(options->pause);
  }
  return SOAP_ERR;
}

/* The last line. Returns whether every reply is correct and came once. */
static int summary(const struct options *options, ULONG64 acked, const struct reply *replies)
{
  ULONG64 i, j;
  int right = 1;
  printf("{\"sent\":%llu,\"acked\":%llu,\"replies\":[", (unsigned long long)options->count, (unsigned long long)acked);
  for (i = 0; options->twoway && i < options->count; i++)
  {
    right = right && replies[i].correct;
    for (j = 0; j < i; j++)
      if (replies[i].sequence_number && replies[i].sequence_number == replies[j].sequence_number)
        right = 0;
    printf("%s{\"number\":%llu,\"sequence_number\":%llu,\"correct\":%s}", i ? "," : "",
           (unsigned long long)replies[i].number, (unsigned long long)replies[i].sequence_number,
           replies[i].correct ? "true" : "false");
  }
  puts("]}");
  return right;
}

/* soapcpp2 makes the first name of the table's SOAP entries SOAP 1.2's, and gSOAP writes what comes first. */
static void speak_soap_11(void)
{
  int i;
  for (i = 0; i < 2; i++)
  {
    const char *soap12 = namespaces[i].ns;
    namespaces[i].ns = namespaces[i].in;
    namespaces[i].in = soap12;
  }
}

static int parse(int argc, char **argv, struct options *options)
{
  int i;
  memset(options, 0, sizeof *options);
  options->key = "k";
  options->rounds = 60;
  options->pause = 50000;
  for (i = 1; i + 1 < argc; i += 2)
  {
    const char *value = argv[i + 1];
    if (!strcmp(argv[i], "--url"))
      options->url = value;
    else if (!strcmp(argv[i], "--key"))
      options->key = value;
    else if (!strcmp(argv[i], "--mode") && (!strcmp(value, "oneway") || !strcmp(value, "twoway")))
      options->twoway = !strcmp(value, "twoway");
    else if (!strcmp(argv[i], "--count"))
      options->count = strtoull(value, NULL, 10);
    else if (!strcmp(argv[i], "--soap") && (!strcmp(value, "1.1") || !strcmp(value, "1.2")))
      options->soap11 = !strcmp(value, "1.1");
    else if (!strcmp(argv[i], "--ids") && (!strcmp(value, "yes") || !strcmp(value, "no")))
      options->no_ids = !strcmp(value, "no");
    else if (!strcmp(argv[i], "--rounds"))
      options->rounds = atoi(value);
    else if (!strcmp(argv[i], "--pause"))
      options->pause = (useconds_t)atoi(value) * 1000;
    else
      return 0;
  }
  return i == argc && options->url && options->count > 0 && options->rounds > 0;
}

int main(int argc, char **argv)
{
  struct options options;
  struct soap *soap;
  struct reply *replies;
  soap_wsrm_sequence_handle seq = NULL;
  char body[64];
  int error, right;
  ULONG64 acked = 0;
  if (!parse(argc, argv, &options))
  {
    fprintf(stderr, "usage: client --mode oneway|twoway --count N --url URL [--key K] [--soap 1.1|1.2]"
                    " [--rounds R] [--pause MS] [--ids yes|no]\n");
    return 2;
  }
  signal(SIGPIPE, SIG_IGN);
  if (options.soap11)
    speak_soap_11();
  soap = soap_new();
  snprintf(body, sizeof body, "<%s> & \"quoted\"", options.key);
  replies = calloc(options.count, sizeof *replies);
  soap_register_plugin(soap, soap_wsa);
  soap_register_plugin(soap, soap_wsrm);
  soap->connect_timeout = soap->send_timeout = soap->recv_timeout = 10;

  error = create(soap, &options, &seq);
  if (!error)
    error = options.twoway ? send_twoway(soap, &options, seq, body, replies) : send_oneway(soap, &options, seq, body);
  if (!error)
    error = settle(soap, &options, seq, options.count);
  if (seq)
    acked = (seq->num < options.count ? seq->num : options.count) - unacknowledged(seq, options.count);
  if (!error)
    error = close_sequence(soap, &options, seq);
  if (!error)
    error = terminate(soap, &options, seq);
  right = summary(&options, acked, replies);

  if (seq)
    soap_wsrm_seq_free(soap, seq);
  free(replies);
  soap_destroy(soap);
  soap_end(soap);
  soap_free(soap);
  return error || !right || acked != options.count;
}
