/* An RM Destination built with gSOAP, for interoperability tests: accepts Sequences, delivers each message once,
   answers `echo`, and appends a line {"key":...,"number":...,"operation":...} to FILE for every delivered message.

   server --port P [--log FILE] [--sleep MS] [--stock] [--threads]

   Prints "ready PORT" when it listens (port 0: any free one). The RM version is the one it was built for.

   gSOAP's plugin leaves two things to the service, and both matter to an RM Source that can only be answered on
   the connection it opened: acknowledgements for one-way messages, and the reply to a request whose first reply
   was lost. This service does both, by the plugin's own functions. With --stock it does neither and is what the
   plugin's documentation shows: one-way messages and duplicates are answered 202 with nothing in it.

   With --threads it is what bench/broker.py loads: a thread for each connection, which is kept open, and no list of
   what was delivered, which takes the longer the more there was. Only one-way messages are served then.

   With --sleep, it takes that many milliseconds to answer `echo`. */

#include "interop.nsmap"
#include "json.h"
#include "wsrmapi.h"

#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#define ACTION_ECHO_RESPONSE "urn:holdfast:interop/echoResponse"
#define NOT_REPLIED 0

/* A message that was delivered, and the number its reply has in the offered Sequence. */
struct delivered
{
  char *identifier;
  ULONG64 number, reply_number;
  struct delivered *next;
};

static struct delivered *all_delivered;
static FILE *log_file;
static int stock, threads;
static useconds_t answer_time;

static struct delivered *find_delivered(const char *identifier, ULONG64 number)
{
  struct delivered *d;
  for (d = all_delivered; d; d = d->next)
    if (d->number == number && !strcmp(d->identifier, identifier))
      return d;
  return NULL;
}

static struct delivered *deliver(struct soap *soap, const char *operation, const char *key, ULONG64 number)
{
  struct delivered *d = calloc(1, sizeof *d);
  d->identifier = strdup(soap->header->wsrm__Sequence->Identifier);
  d->number = soap->header->wsrm__Sequence->MessageNumber;
  d->next = all_delivered;
  all_delivered = d;
  if (log_file)
  {
    fprintf(log_file, "{\"operation\":\"%s\",\"key\":", operation);
    json_string(log_file, key);
    fprintf(log_file, ",\"number\":%llu}\n", (unsigned long long)number);
    fflush(log_file);
  }
  return d;
}

/* What was delivered under this message's number before, if the Sequence still lives: the plugin would answer the
   duplicate with nothing. */
static struct delivered *duplicate(struct soap *soap)
{
  struct soap_wsrm_sequence *seq;
  int living;
  if (stock || threads || !soap->header || !soap->header->wsrm__Sequence)
    return NULL;
  seq = soap_wsrm_seq(soap);
  if (!seq)
    return NULL;
  living = seq->state == SOAP_WSRM_CREATED || seq->state == SOAP_WSRM_CLOSED;
  soap_wsrm_seq_release(soap, seq);
  return living ? find_delivered(soap->header->wsrm__Sequence->Identifier, soap->header->wsrm__Sequence->MessageNumber)
                : NULL;
}

/* Answer with an empty-bodied SequenceAcknowledgement for the Sequence of `soap->header->wsrm__Sequence`, in the
   HTTP response; with 202 when there is nothing to acknowledge or the acknowledgement went to its own address. */
static int acknowledge(struct soap *soap)
{
  struct SOAP_ENV__Header *in = soap->header;
  struct wsa5__RelatesToType *relates_to = NULL;
  int count;
  if (soap_wsrm_reply_num(soap, 0))
    return soap->error;
  count = in->__sizeSequenceAcknowledgement;
  if (!count)
    return soap_send_empty_response(soap, 202);
  if (in->wsa5__MessageID)
  {
    relates_to = soap_malloc(soap, sizeof *relates_to);
    soap_default_wsa5__RelatesToType(soap, relates_to);
    relates_to->__item = in->wsa5__MessageID;
  }
  soap->header = NULL;
  soap_header(soap);
  soap_default_SOAP_ENV__Header(soap, soap->header);
  soap->header->wsa5__Action = SOAP_NAMESPACE_OF_wsrm "/SequenceAcknowledgement";
  soap->header->wsa5__To = (char *)soap_wsa_anonymousURI;
  soap->header->wsa5__RelatesTo = relates_to;
  soap->header->__sizeSequenceAcknowledgement = count;
  soap->header->wsrm__SequenceAcknowledgement = in->wsrm__SequenceAcknowledgement;
  soap->action = soap->header->wsa5__Action; /* goes into the Content-Type */
  soap_serializeheader(soap);
  if (soap_begin_count(soap))
    return soap->error;
  if (soap->mode & SOAP_IO_LENGTH)
    if (soap_envelope_begin_out(soap) || soap_putheader(soap) || soap_body_begin_out(soap) ||
        soap_body_end_out(soap) || soap_envelope_end_out(soap))
      return soap->error;
  if (soap_end_count(soap) || soap_response(soap, SOAP_OK) || soap_envelope_begin_out(soap) || soap_putheader(soap) ||
      soap_body_begin_out(soap) || soap_body_end_out(soap) || soap_envelope_end_out(soap) || soap_end_send(soap))
    return soap->error;
  return soap_closesock(soap);
}

int t__notify(struct soap *soap, char *key, ULONG64 number, char *body)
{
  (void)body;
  if (stock)
  {
    if (soap_wsrm_check_send_empty_response(soap))
      return soap->error;
    deliver(soap, "notify", key, number);
    return SOAP_OK;
  }
  if (!duplicate(soap))
  {
    if (soap_wsrm_check(soap))
      return soap->error;
    if (!threads)
      deliver(soap, "notify", key, number);
  }
  return acknowledge(soap);
}

int t__echo(struct soap *soap, char *key, ULONG64 number, char *body, struct t__echoResponse *response)
{
  struct delivered *d = duplicate(soap);
  response->key = key;
  response->number = number;
  response->body = body;
  if (d && d->reply_number != NOT_REPLIED)
  {
    if (soap_wsrm_reply_num(soap, 0))
      return soap->error;
    soap->header->wsrm__Sequence->MessageNumber = d->reply_number; /* the reply it had, again */
    return soap_wsa_reply(soap, NULL, ACTION_ECHO_RESPONSE);
  }
  if (soap_wsrm_check(soap))
    return soap->error;
  d = deliver(soap, "echo", key, number);
  usleep(answer_time);
  if (soap_wsrm_reply(soap, NULL, ACTION_ECHO_RESPONSE))
    return soap->error;
  if (soap->header->wsrm__Sequence)
    d->reply_number = soap->header->wsrm__Sequence->MessageNumber;
  return SOAP_OK;
}

/* soapcpp2 -a dispatches fault messages here. To a server of anonymous clients none is sent. */
int SOAP_ENV__Fault(struct soap *soap, char *faultcode, char *faultstring, char *faultactor,
                    struct SOAP_ENV__Detail *detail, struct SOAP_ENV__Code *Code, struct SOAP_ENV__Reason *Reason,
                    char *Node, char *Role, struct SOAP_ENV__Detail *Detail)
{
  (void)faultcode, (void)faultactor, (void)detail, (void)Code, (void)Node, (void)Role, (void)Detail;
  fprintf(stderr, "fault received: %s\n", faultstring ? faultstring : Reason ? Reason->SOAP_ENV__Text : "?");
  return soap_send_empty_response(soap, 202);
}

/* A stand-alone AckRequested, answered on its own connection; the plugin answers 202 and nothing else. */
static int serve_ack_requested(struct soap *soap)
{
  struct wsrm__SequenceType sequence;
  if (soap_body_end_in(soap) || soap_envelope_end_in(soap) || soap_end_recv(soap))
    return soap->error;
  soap_default_wsrm__SequenceType(soap, &sequence);
  sequence.Identifier = soap->header->wsrm__AckRequested[0].Identifier;
  soap->header->wsrm__Sequence = &sequence;
  return acknowledge(soap);
}

static int is_ack_requested(struct soap *soap)
{
  return !stock && soap->action && !strcmp(soap->action, SOAP_NAMESPACE_OF_wsrm "/AckRequested") && soap->header &&
         soap->header->__sizeAckRequested > 0;
}

static void serve_one(struct soap *soap)
{
  if (!soap_begin_serve(soap))
    if ((is_ack_requested(soap) ? serve_ack_requested(soap) : soap_serve_request(soap)) && soap->error < SOAP_STOP)
      soap_send_fault(soap);
  soap_closesock(soap);
  soap_destroy(soap);
  soap_end(soap);
}

static void *serve_connection(void *argument)
{
  struct soap *soap = argument;
  do
  {
    soap->keep_alive = 1;
    if (soap_begin_serve(soap))
      break;
    if (soap_serve_request(soap) && soap->error < SOAP_STOP)
      soap_send_fault(soap);
    soap_destroy(soap);
    soap_end(soap);
  } while (soap->keep_alive);
  soap_closesock(soap);
  soap_destroy(soap);
  soap_end(soap);
  soap_free(soap);
  return NULL;
}

static void serve_in_threads(struct soap *soap)
{
  pthread_t thread;
  soap_set_mode(soap, SOAP_IO_KEEPALIVE);
  while (soap_valid_socket(soap_accept(soap)))
    if (!pthread_create(&thread, NULL, serve_connection, soap_copy(soap)))
      pthread_detach(thread);
}

static int parse(int argc, char **argv, int *port)
{
  int i;
  *port = -1;
  for (i = 1; i < argc; i++)
    if (!strcmp(argv[i], "--stock"))
      stock = 1;
    else if (!strcmp(argv[i], "--threads"))
      threads = 1;
    else if (!strcmp(argv[i], "--port") && i + 1 < argc)
      *port = atoi(argv[++i]);
    else if (!strcmp(argv[i], "--sleep") && i + 1 < argc)
      answer_time = (useconds_t)atoi(argv[++i]) * 1000;
    else if (!strcmp(argv[i], "--log") && i + 1 < argc)
    {
      log_file = fopen(argv[++i], "a");
      if (!log_file)
      {
        perror(argv[i]);
        return 0;
      }
    }
    else
      return 0;
  return *port >= 0;
}

int main(int argc, char **argv)
{
  struct soap *soap = soap_new();
  struct sockaddr_in address;
  socklen_t length = sizeof address;
  int port;
  if (!parse(argc, argv, &port))
  {
    fprintf(stderr, "usage: server --port P [--log FILE] [--stock] [--threads]\n");
    return 2;
  }
  signal(SIGPIPE, SIG_IGN);
  soap_register_plugin(soap, soap_wsa);
  soap_register_plugin(soap, soap_wsrm);
  soap->send_timeout = soap->recv_timeout = 5;
  soap->bind_flags = SO_REUSEADDR;
  if (!soap_valid_socket(soap_bind(soap, "127.0.0.1", port, 100)) ||
      getsockname(soap->master, (struct sockaddr *)&address, &length))
  {
    soap_print_fault(soap, stderr);
    return 1;
  }
  printf("ready %d\n", ntohs(address.sin_port));
  fflush(stdout);
  if (threads)
    serve_in_threads(soap);
  while (soap_valid_socket(soap_accept(soap)))
    serve_one(soap);
  soap_print_fault(soap, stderr);
  return 1;
}
