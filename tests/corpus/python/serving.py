"""The load of a program: a client process, or a clock.

A program's first argument is what it does. Others, if given, are its port and the client's requests
per second; with 0, it is only asked once.
"""

import socket
import subprocess
import sys
import time
from pathlib import Path

PER_S = 20


def begin_load():
    """Starts the client of a server that is about to listen. Returns the server's port."""
    port, per_s = sys.argv[2:] or (free_port(), PER_S)
    client = [sys.executable, Path(__file__).with_name("load.py"), str(port), str(per_s)]
    subprocess.Popen(client, stdin=subprocess.DEVNULL)
    return int(port)


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def ticks():
    """Numbers, some a second."""
    print("ready", flush=True)
    number = 0
    while True:
        number += 1
        yield number
        time.sleep(1 / PER_S)


def serve_flask(app):
    """Serves a WSGI application by the server of Flask's own, until it is killed."""
    from werkzeug.serving import run_simple

    run_simple("127.0.0.1", begin_load(), app, threaded=True)


def serve_gunicorn(app, **settings):
    """Serves a WSGI application until it is killed."""
    from gunicorn.app.base import BaseApplication

    bound = {"bind": f"127.0.0.1:{begin_load()}", **settings}

    class Service(BaseApplication):
        def load_config(self):
            for name, value in bound.items():
                self.cfg.set(name, value)

        def load(self):
            return app

    Service().run()


def serve_django(view, **settings):
    """Serves a view at all addresses, until it is killed."""
    import django
    from django.conf import settings as configured
    from django.core.servers.basehttp import run
    from django.core.wsgi import get_wsgi_application
    from django.urls import re_path

    sys.modules["__main__"].urlpatterns = [re_path("", view)]
    configured.configure(
        SECRET_KEY="none", ROOT_URLCONF="__main__", ALLOWED_HOSTS=["*"], **settings
    )
    django.setup()
    run("127.0.0.1", begin_load(), get_wsgi_application())
