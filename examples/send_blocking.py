"""The same as send.py for a program that is not async: the same names, without ``await``.

python send_blocking.py http://localhost:8080/
"""

import sys

import holdfast


def main(url: str) -> None:
    with holdfast.sync.Source(url, store="outbox") as source:
        for number in range(1, 4):
            source.send(f"<order xmlns='urn:orders'>{number} boxes</order>", action="urn:orders/Submit")
        source.flush(timeout=60)
        print(source.progress.acknowledged, "orders are stored there")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "http://localhost:8080/")
