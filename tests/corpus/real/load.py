"""Steady, light load for real programs. Runs by itself: needs nothing but Python.

Usage: python3 load.py KIND PORT PER_SECOND [WORD...]

Every kind repeats one exchange with a server on 127.0.0.1 at a steady pace, until it is
killed. A server that hangs up or refuses is tried again. ``origin`` and ``answers`` are
servers: what proxies and resolvers ask.
"""

import ftplib
import http.client
import http.server
import imaplib
import random
import smtplib
import socket
import ssl
import struct
import sys
import time
from collections.abc import Callable, Iterator

HOST = "127.0.0.1"
PATIENCE_S = 10
CHANCE = random.Random(1)


def steadily(per_s: float) -> Iterator[int]:
    """Numbers at a steady pace; does not catch up what was missed."""
    number, due = 0, time.monotonic()
    while True:
        yield number
        number += 1
        due = max(due + 1 / per_s, time.monotonic() - 1)
        time.sleep(max(0.0, due - time.monotonic()))


def connect(port: int) -> socket.socket:
    """A connection to a server here."""
    return socket.create_connection((HOST, port), PATIENCE_S)


def http_requests(port: int, per_s: float, *paths: str, tls: bool = False) -> None:
    """GET and POST requests, ten on a connection; ``%d`` in a path is a number below 500."""
    connection: http.client.HTTPConnection | None = None
    context = ssl._create_unverified_context()
    for number in steadily(per_s):
        if connection is None or number % 10 == 0:
            connection = (
                http.client.HTTPSConnection(HOST, port, timeout=PATIENCE_S, context=context)
                if tls
                else http.client.HTTPConnection(HOST, port, timeout=PATIENCE_S)
            )
        path = CHANCE.choice(paths).replace("%d", str(int(500 * CHANCE.random() ** 2)))
        try:
            if CHANCE.random() < 0.1:
                connection.request("POST", path, b"a=1&b=" + b"x" * CHANCE.randrange(2000))
            else:
                connection.request(
                    "GET", path, headers={"X-Number": str(number), "Accept-Encoding": "gzip"}
                )
            connection.getresponse().read()
        except (OSError, http.client.HTTPException):
            connection.close()
            connection = None


def https_requests(port: int, per_s: float, *paths: str) -> None:
    """Requests over TLS, ten on a connection."""
    http_requests(port, per_s, *paths, tls=True)


def proxied(port: int, per_s: float, *origins: str) -> None:
    """Requests for whole addresses, as proxies expect them: ``http://HOST:PORT/PATH``."""
    http_requests(port, per_s, *origins)


class Origin(http.server.BaseHTTPRequestHandler):
    """Answers everything, with as many bytes as the path's number says, and may be cached."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        number = int("".join(filter(str.isdigit, self.path)) or 7)
        body = b"y" * (100 + number * 7919 % 20000)
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", f"max-age={20 + number % 100}")
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", "0")))
        self.do_GET()

    def log_message(self, *_: object) -> None:
        """Is silent."""


def origin(port: int, _per_s: float) -> None:
    """A web server for proxies to ask."""
    http.server.ThreadingHTTPServer((HOST, port), Origin).serve_forever()


def question(name: str, kind: int) -> bytes:
    """A DNS query."""
    labels = b"".join(bytes([len(part)]) + part.encode() for part in name.split("."))
    head = struct.pack(">HHHHHH", CHANCE.randrange(1 << 16), 0x0100, 1, 0, 0, 0)
    return head + labels + b"\0" + struct.pack(">HH", kind, 1)


def dns(port: int, per_s: float, *names: str) -> None:
    """DNS queries for names, in which ``%d`` is a number below 5000, small ones more often."""
    asking = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    asking.settimeout(1)
    for _ in steadily(per_s):
        name = CHANCE.choice(names).replace("%d", str(int(5000 * CHANCE.random() ** 3)))
        try:
            asking.sendto(question(name, CHANCE.choice([1, 1, 1, 28, 15])), (HOST, port))
            asking.recv(4096)
        except OSError:
            continue


def answers(port: int, _per_s: float) -> None:
    """A name server for resolvers to ask: each name has an address, for a minute or so."""
    serving = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    serving.bind((HOST, port))
    while True:
        query, who = serving.recvfrom(4096)
        end = query.index(b"\0", 12) + 5
        kind = struct.unpack(">H", query[end - 4 : end - 2])[0]
        body = query[12:end]
        found = kind == 1
        head = query[:2] + struct.pack(">HHHHH", 0x8580, 1, int(found), 0, 0)
        ttl = 20 + sum(body) % 200
        record = b"\xc0\x0c" + struct.pack(">HHIH", 1, 1, ttl, 4) + bytes([10, 0, 0, 1])
        serving.sendto(head + body + (record if found else b""), who)


def lines(port: int, per_s: float, *scripts: str) -> None:
    """Sends scripts, over new connections every 20 and reads what comes.

    ``%d``: a number below 500; ``%s``: a text of some length; ``|``: the end of a line.
    """
    talking: socket.socket | None = None
    for number in steadily(per_s):
        try:
            if talking is None or number % 20 == 0:
                talking = connect(port)
                talking.settimeout(0.2)
            script = CHANCE.choice(scripts).replace("|", "\r\n")
            text = "z" * CHANCE.randrange(1, 400)
            script = script.replace("%d", str(int(500 * CHANCE.random() ** 2)))
            script = script.replace("%s", text).replace("%l", str(len(text)))
            talking.sendall(script.encode())
            talking.recv(65536)
        except TimeoutError:
            continue
        except OSError:
            talking = None


def datagrams(port: int, per_s: float, *scripts: str) -> None:
    """Sends datagrams and expects no answer."""
    sending = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    for number in steadily(per_s):
        text = CHANCE.choice(scripts).replace("%d", str(number % 500))
        try:
            sending.sendto(
                text.replace("%s", "z" * CHANCE.randrange(1, 400)).encode(), (HOST, port)
            )
        except OSError:
            continue


def irc(port: int, per_s: float) -> None:
    """Six users who join, talk and leave."""
    users: list[socket.socket | None] = [None] * 6
    for number in steadily(per_s):
        at = CHANCE.randrange(len(users))
        try:
            user = users[at]
            if user is None:
                users[at] = user = connect(port)
                user.settimeout(0.05)
                user.sendall(f"NICK u{number}\r\nUSER u u u u\r\nJOIN #a{at % 2}\r\n".encode())
            elif CHANCE.random() < 0.02:
                user.sendall(b"QUIT :bye\r\n")
                user.close()
                users[at] = None
                continue
            else:
                user.sendall(f"PRIVMSG #a{at % 2} :number {number}\r\nWHO #a0\r\n".encode())
            if user.recv(65536) == b"":
                users[at] = None
            elif user:
                user.sendall(b"PONG :x\r\n")
        except TimeoutError:
            continue
        except OSError:
            users[at] = None


def smtp(port: int, per_s: float) -> None:
    """One long conversation: senders, recipients, and no message."""
    while True:
        try:
            with smtplib.SMTP(HOST, port, timeout=PATIENCE_S) as mail:
                mail.helo("here")
                for number in steadily(per_s):
                    mail.docmd(f"MAIL FROM:<u{number % 50}@localhost>")
                    mail.docmd(f"RCPT TO:<r{number % 70}@localhost>")
                    mail.docmd("RSET")
        except (OSError, smtplib.SMTPException):
            time.sleep(1)


def imap(port: int, per_s: float) -> None:
    """One mailbox: messages come, are read, searched and expunged."""
    while True:
        try:
            mail = imaplib.IMAP4(HOST, port, timeout=PATIENCE_S)
            mail.login("u", "p")
            mail.select()
            for number in steadily(per_s):
                body = f"Subject: n{number}\r\n\r\n" + "w" * CHANCE.randrange(2000)
                mail.append("INBOX", "", "", body.encode())
                mail.search(None, "SUBJECT", f"n{number - 1}")
                mail.fetch("1:3", "(FLAGS ENVELOPE BODY[TEXT])")
                if number % 10 == 9:
                    mail.store("1:10", "+FLAGS", "\\Deleted")
                    mail.expunge()
        except (OSError, imaplib.IMAP4.error):
            time.sleep(1)


def ftp(port: int, per_s: float) -> None:
    """One long session: lists and fetches."""
    while True:
        try:
            files = ftplib.FTP()
            files.connect(HOST, port, PATIENCE_S)
            files.login()
            for number in steadily(per_s):
                files.retrlines("LIST" if number % 2 else "NLST", lambda _: None)
                files.retrbinary("RETR a.txt", lambda _: None)
        except (OSError, *ftplib.all_errors):
            time.sleep(1)


def idle(port: int, per_s: float) -> None:
    """Thirty connections that say nothing; at this pace the oldest makes room for a new one."""
    held: list[socket.socket] = []
    for _ in steadily(per_s):
        try:
            while len(held) < 30:
                held.append(connect(port))
            held.pop(0).close()
        except OSError:
            pass


KINDS: dict[str, Callable[..., None]] = {
    "http": http_requests, "https": https_requests, "proxied": proxied, "origin": origin,
    "dns": dns, "answers": answers, "lines": lines, "datagrams": datagrams, "irc": irc,
    "smtp": smtp, "imap": imap, "ftp": ftp, "idle": idle,
}  # fmt: skip


if __name__ == "__main__":
    KINDS[sys.argv[1]](int(sys.argv[2]), float(sys.argv[3]), *sys.argv[4:])
