#!/bin/sh
# From a shell: twenty orders on their way, from files to files.
#
#     sh shell.sh [DIRECTORY]        PORT=8080 by default
set -eu

work=${1:-$(mktemp -d)}
port=${PORT:-8080}
mkdir -p "$work/orders"
cd "$work"
for number in 01 02 03 04 05 06 07 08 09 10 11 12 13 14 15 16 17 18 19 20; do
    echo "<order xmlns='urn:orders'>$number</order>" > "orders/$number.xml"
done

# The sender may be first: it tries until somebody is there.
holdfast send --to "http://127.0.0.1:$port/" --store outbox orders/*.xml &
sender=$!
holdfast receive --port "$port" --store inbox --out landed --count 20
wait "$sender"

holdfast sequences inbox
echo "$(ls landed | wc -l) orders landed in $work/landed"
