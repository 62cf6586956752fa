/* The interoperability contract, as soapcpp2 reads it: one one-way operation and one request/reply operation.
   The reliable messaging version comes from rm10.h or rm11.h, which import this file. */

//gsoap t service name:      interop
//gsoap t service namespace: urn:holdfast:interop
//gsoap t schema namespace:  urn:holdfast:interop
//gsoap t schema form:       qualified

//gsoap t service method-header-part: notify wsa5__MessageID
//gsoap t service method-header-part: notify wsa5__RelatesTo
//gsoap t service method-header-part: notify wsa5__From
//gsoap t service method-header-part: notify wsa5__ReplyTo
//gsoap t service method-header-part: notify wsa5__FaultTo
//gsoap t service method-header-part: notify wsa5__To
//gsoap t service method-header-part: notify wsa5__Action
//gsoap t service method-header-part: notify wsrm__Sequence
//gsoap t service method-header-part: notify wsrm__AckRequested
//gsoap t service method-header-part: notify wsrm__SequenceAcknowledgement
//gsoap t service method-action:      notify urn:holdfast:interop/notify
int t__notify(char *key, ULONG64 number, char *body, void);

//gsoap t service method-header-part:   echo wsa5__MessageID
//gsoap t service method-header-part:   echo wsa5__RelatesTo
//gsoap t service method-header-part:   echo wsa5__From
//gsoap t service method-header-part:   echo wsa5__ReplyTo
//gsoap t service method-header-part:   echo wsa5__FaultTo
//gsoap t service method-header-part:   echo wsa5__To
//gsoap t service method-header-part:   echo wsa5__Action
//gsoap t service method-header-part:   echo wsrm__Sequence
//gsoap t service method-header-part:   echo wsrm__AckRequested
//gsoap t service method-header-part:   echo wsrm__SequenceAcknowledgement
//gsoap t service method-action:        echo urn:holdfast:interop/echo
//gsoap t service method-output-action: echo urn:holdfast:interop/echoResponse
int t__echo(char *key, ULONG64 number, char *body,
            struct t__echoResponse { char *key; ULONG64 number; char *body; } *response);
