"""A client that asks a server of this machine at a steady rate, until there is none any more.

``load.py PORT PER_S`` says ``ready`` when it has been answered once.
"""

import http.client
import sys
import time

PATIENCE_S = 60


def ask(port, number):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
    try:
        connection.request("GET", f"/item/{number}")
        connection.getresponse().read()
    finally:
        connection.close()


def main():
    port, per_s = map(int, sys.argv[1:])
    begun_s, number = time.monotonic(), 0
    while True:
        try:
            ask(port, number)
        except OSError:
            if number or time.monotonic() - begun_s > PATIENCE_S:
                return
            time.sleep(0.1)
            continue
        if not number:
            print("ready", flush=True)
            begun_s = time.monotonic()
        number += 1
        if not per_s:
            return
        time.sleep(max(0.0, begun_s + number / per_s - time.monotonic()))


main()
