#!/bin/sh
# Builds the gSOAP peers: build.sh OUT_DIRECTORY makes OUT_DIRECTORY/{rm10,rm11}/{client,server}.
#
# CFLAGS are those of gcc, -O0 if there are none: to build is quicker so, and tests do not need more.
#
# Needs soapcpp2, gcc, pkg-config and the plugin sources that Debian's packages gsoap and libgsoap-dev install.
# The plugin is compiled where it is found (GSOAP_SHARE, by default /usr/share/gsoap); nothing of it is kept here.
set -eu
share=${GSOAP_SHARE:-/usr/share/gsoap}
here=$(cd "$(dirname "$0")" && pwd)
out=$1

for version in rm10 rm11; do
    directory=$out/$version
    mkdir -p "$directory"
    soapcpp2 -a -c -L -x -w -I"$here:$share/import:$share" -d"$directory" "$here/$version.h"

    # wsrmapi.h of 2.8.124 declares, for RM 1.0, a TerminateSequence that neither wsrmapi.c nor soapcpp2 agrees with:
    # compile a private copy whose other branch is taken. The .c beside it, because it includes "wsrmapi.h".
    cp "$share/plugin/wsrmapi.c" "$directory/"
    sed 's/^#ifdef SOAP_WSRM_2005$/#if 0/' "$share/plugin/wsrmapi.h" >"$directory/wsrmapi.h"

    # SOAP_WSRM_FAST_ALLOC: unacknowledged messages in a table. The plugin's list, its default, keeps its end at a
    # message that an acknowledgement has freed while an earlier one is still unacknowledged: what is appended
    # there is written into freed memory, and never sent again.
    # SOAP_WSRM_TIMEOUT: how long a LastMessage that arrives early may hold up this one-threaded server.
    for source in "$here/client.c" "$here/server.c" "$directory/soapC.c" "$directory/soapClient.c" \
        "$directory/soapServer.c" "$directory/wsrmapi.c" "$share/plugin/wsaapi.c" "$share/plugin/threads.c" \
        "$share/custom/duration.c"; do
        # shellcheck disable=SC2046,SC2086  # the flags are words
        gcc ${CFLAGS:--O0} -w -DSOAP_WSRM_FAST_ALLOC -DSOAP_WSRM_TIMEOUT=1 -c -o "$directory/$(basename "$source" .c).o" \
            -I"$directory" -I"$here" -I"$share/plugin" -I"$share" $(pkg-config --cflags gsoap) "$source"
    done
    common="soapC.o soapClient.o wsrmapi.o wsaapi.o threads.o duration.o"
    # shellcheck disable=SC2046,SC2086  # the objects and the libraries are words
    (
        cd "$directory"
        gcc -o client client.o $common $(pkg-config --libs gsoap) -lpthread
        gcc -o server server.o soapServer.o $common $(pkg-config --libs gsoap) -lpthread
    )
done
