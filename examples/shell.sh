#!/bin/sh
# From a shell: twenty orders on their way, from files to files.
#
#     sh shell.sh [DIRECTORY]        PORT=8080 sets the port; without it, any free one
set -eu

work=${1:-$(mktemp -d)}
mkdir -p "$work/orders"
cd "$work"
for number in 01 02 03 04 05 06 07 08 09 10 11 12 13 14 15 16 17 18 19 20; do
    echo "<order xmlns='urn:orders'>$number</order>" > "orders/$number.xml"
done

# Its first line says where it listens.
holdfast receive --port "${PORT:-0}" --store inbox --out landed --count 20 > receive.out &
receiver=$!
until url=$(grep -o -m 1 'http://[^ ]*' receive.out); do
    kill -0 "$receiver" # ends this script if the receiver has ended
    sleep 0.1
done
holdfast send --to "$url" --store outbox orders/*.xml
wait "$receiver"

holdfast sequences inbox
echo "$(ls landed | wc -l) orders landed in $work/landed"
