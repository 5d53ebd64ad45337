"""A service that leaks with each request; the first argument says how (``serving.py``)."""

import asyncio
import functools
import gc
import io
import logging
import sys
import threading

from serving import begin_load, serve_django, serve_flask, serve_gunicorn, ticks

PAGES = {}
LOCAL = threading.local()
TASKS = set()
CLIENTS = []
LISTENERS = []
ERRORS = []
WAITING = []
STREAMS = []
FEEDS = {}


class Page:
    """A page, as a request asks for it."""

    def __init__(self, path):
        self.path = path
        self.words = path.split("/")


def flask_cache():
    """A cache by address, without a bound."""
    import flask

    app = flask.Flask(__name__)

    @app.get("/<path:path>")
    def show(path):
        PAGES[path] = Page(path)
        return path

    serve_flask(app)


def flask_logging():
    """A logging handler for each request."""
    import flask

    app = flask.Flask(__name__)

    @app.get("/<path:path>")
    def show(path):
        app.logger.addHandler(logging.StreamHandler(io.StringIO()))
        return path

    serve_flask(app)


def django_signals():
    """A receiver of a signal for each request."""
    from django.core.signals import request_finished
    from django.http import HttpResponse

    def show(request):
        page = Page(request.path)

        def finished(**_):
            page.is_done = True

        request_finished.connect(finished, weak=False)
        return HttpResponse(page.path)

    serve_django(show)


def django_locals():
    """Requests in a list that belongs to the thread."""
    from django.http import HttpResponse

    def show(request):
        if not hasattr(LOCAL, "audit"):
            LOCAL.audit = []
        LOCAL.audit.append(request)
        return HttpResponse(request.path)

    serve_django(show)


class Prices:
    """Made for each request, and kept by the cache of its method."""

    def __init__(self, number):
        self.number = number

    @functools.lru_cache(maxsize=None)  # noqa: B019, UP033 - this is the leak
    def quote(self, currency):
        return {"number": self.number, "currency": currency}


def fastapi_lru_cache():
    """``lru_cache`` on a method."""
    import fastapi
    import uvicorn

    app = fastapi.FastAPI()

    @app.get("/item/{number}")
    async def show(number: int) -> dict:
        return Prices(number).quote("EUR")

    uvicorn.run(app, port=begin_load(), log_level="warning")


def fastapi_tasks():
    """Tasks that wait for what never comes."""
    import fastapi
    import uvicorn

    app = fastapi.FastAPI()

    async def notify(page):
        await asyncio.Event().wait()
        return page

    @app.get("/item/{number}")
    async def show(number: int) -> str:
        TASKS.add(asyncio.create_task(notify(Page(f"/item/{number}"))))
        return "accepted"

    uvicorn.run(app, port=begin_load(), log_level="warning")


def aiohttp_sessions():
    """Client sessions that nobody closes."""
    import aiohttp
    from aiohttp import web

    async def show(request):
        CLIENTS.append(aiohttp.ClientSession(headers={"From": request.path}))
        return web.Response(text=request.path)

    app = web.Application()
    app.router.add_get("/{path:.*}", show)
    web.run_app(app, host="127.0.0.1", port=begin_load(), print=None)


def aiohttp_closures():
    """Functions that are to be called back, and never removed."""
    from aiohttp import web

    async def show(request):
        async def changed():
            return request.path

        LISTENERS.append(changed)
        return web.Response(text=request.path)

    app = web.Application()
    app.router.add_get("/{path:.*}", show)
    web.run_app(app, host="127.0.0.1", port=begin_load(), print=None)


class Messages:
    """The buffer of tornado's example of a chat."""

    def __init__(self):
        self.waiters = set()

    async def wait(self):
        from tornado.concurrent import Future

        waiter = Future()
        self.waiters.add(waiter)
        return await waiter


MESSAGES = Messages()


def tornado_waiters():
    """Futures that are never resolved, and the coroutines that wait for them."""
    from tornado import ioloop, web

    class Show(web.RequestHandler):
        def get(self):
            ioloop.IOLoop.current().spawn_callback(MESSAGES.wait)
            self.write(self.request.path)

    async def main():
        web.Application([("/.*", Show)]).listen(begin_load(), "127.0.0.1")
        await asyncio.Event().wait()

    asyncio.run(main())


def run_celery(work):
    """Runs a worker in this process, which also sends its tasks."""
    import celery

    app = celery.Celery(broker="memory://")
    app.conf.task_ignore_result = True
    task = app.task(name="work")(work)

    def send():
        for number in ticks():
            task.delay(number)

    threading.Thread(target=send, daemon=True).start()
    app.worker_main(["--quiet", "worker", "--pool=solo", "--loglevel=critical"])


def parsed(number):
    rows = [{"number": number, "row": row} for row in range(10)]
    raise ValueError(f"row {len(rows)} is missing")


def celery_exceptions():
    """Exceptions that are kept, with all variables of the functions that they passed."""

    def work(number):
        try:
            parsed(number)
        except ValueError as error:
            ERRORS.append(error)

    run_celery(work)


def celery_signals():
    """A receiver of a signal for each task."""
    from celery.signals import task_postrun

    def work(number):
        page = Page(f"/task/{number}")

        def finished(**_):
            page.is_done = True

        task_postrun.connect(finished, weak=False)

    run_celery(work)


def with_table():
    """A database in memory with one table, and its class."""
    from sqlalchemy import create_engine
    from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

    class Base(DeclarativeBase):
        pass

    class Order(Base):
        __tablename__ = "orders"
        number: Mapped[int] = mapped_column(primary_key=True)

    engine = create_engine("sqlite://")
    Base.metadata.create_all(engine)
    return engine, Order


def sqlalchemy_sessions():
    """Sessions that are never closed: a registry by request, of which nothing is removed."""
    from sqlalchemy.orm import scoped_session, sessionmaker

    engine, order = with_table()
    current = 0
    sessions = scoped_session(sessionmaker(engine), scopefunc=lambda: current)
    globals()["SESSIONS"] = sessions
    for current in ticks():
        sessions.add(order(number=current))
        sessions.flush()


def sqlalchemy_listeners():
    """A listener to the database's events for each request."""
    from sqlalchemy import event, text

    engine, _ = with_table()
    for number in ticks():
        page = Page(f"/order/{number}")

        def executed(*_, page=page):
            page.is_done = True

        event.listen(engine, "after_cursor_execute", executed)
        with engine.connect() as connection:
            connection.execute(text("select 1"))


class Node:
    """A request that refers to its answer, which refers to it."""

    def __init__(self, path):
        self.path, self.answer = path, {"to": self}


def gunicorn_cycles():
    """Cycles, while workers have the collector off."""

    def app(environ, start_response):
        node = Node(environ["PATH_INFO"])
        start_response("200 OK", [])
        return [node.path.encode()]

    serve_gunicorn(app, workers=1, post_fork=lambda _, __: gc.disable())


def twisted_protocols():
    """Connections that stay in a list when they are closed."""
    from twisted.internet import protocol, reactor

    class Show(protocol.Protocol):
        def connectionMade(self):  # noqa: N802 - twisted's name
            self.factory.clients.append(self)

        def dataReceived(self, data):  # noqa: N802
            self.transport.write(b"HTTP/1.0 200 OK\r\n\r\nok")
            self.transport.loseConnection()

    factory = protocol.Factory.forProtocol(Show)
    factory.clients = []
    reactor.listenTCP(begin_load(), factory, interface="127.0.0.1")
    reactor.run()


def twisted_generators():
    """Generators that wait for what never comes."""
    from twisted.internet import defer, reactor
    from twisted.web import resource, server

    @defer.inlineCallbacks
    def answer(page):
        waiting = defer.Deferred()
        WAITING.append(waiting)
        yield waiting
        page.is_done = True

    class Show(resource.Resource):
        isLeaf = True  # noqa: N815

        def render_GET(self, request):  # noqa: N802
            answer(Page(request.path.decode()))
            return b"accepted"

    reactor.listenTCP(begin_load(), server.Site(Show()), interface="127.0.0.1")
    reactor.run()


async def rows_of(page):
    for row in range(3):
        yield page, row


def asyncio_generators():
    """Asynchronous generators of which only the first item is taken."""

    async def answer(reader, writer):
        request = await reader.readline()
        stream = rows_of(Page(request.decode()))
        await anext(stream)
        STREAMS.append(stream)
        writer.write(b"HTTP/1.0 200 OK\r\n\r\nok")
        await writer.drain()
        writer.close()

    async def main():
        async with await asyncio.start_server(answer, "127.0.0.1", begin_load()):
            await asyncio.Event().wait()

    asyncio.run(main())


def lxml_documents():
    """Documents of which one element each is kept."""
    from lxml import etree

    text = f"<feed>{'<item><title>of today</title></item>' * 50}</feed>"
    for number in ticks():
        FEEDS[number] = etree.fromstring(text)[0]


def numpy_extension():
    """Memory that an extension takes from malloc for each array, and loses."""
    import numpy as np
    import pyleak

    def handle(values):
        pyleak.encode("".join(map(chr, values)))

    for number in ticks():
        handle(np.full(1000, ord("a") + number % 26))


globals()[sys.argv[1]]()
