"""A service that keeps nothing beyond bounds; the first argument is its name (``serving.py``)."""

import asyncio
import collections
import functools
import io
import random
import sys
import threading
import time

from serving import begin_load, serve_django, serve_flask, serve_gunicorn, ticks

RECENT = collections.deque(maxlen=300)
KEPT_S = 10.0
STATES = ("open", "paid", "sent")


class Page:
    """A page, as a request asks for it."""

    def __init__(self, path):
        self.path = path
        self.words = path.split("/")


@functools.lru_cache(maxsize=2000)
def page_of(path):
    return Page(path)


class Expiring:
    """A cache whose entries expire."""

    def __init__(self):
        self.entries = {}

    def put(self, key, value):
        now_s = time.monotonic()
        while self.entries and next(iter(self.entries.values()))[0] < now_s - KEPT_S:
            del self.entries[next(iter(self.entries))]
        self.entries[key] = now_s, value


CACHE = Expiring()


def flask():
    """Templates, a cache of functions, the last requests."""
    import flask

    app = flask.Flask(__name__)

    @app.get("/<path:path>")
    def show(path):
        page = page_of(path)
        RECENT.append({"path": path, "agent": flask.request.headers.get("User-Agent")})
        text = "{% for word in page.words %}<li>{{ word }}</li>{% endfor %}"
        return flask.render_template_string(text, page=page)

    serve_flask(app)


def django():
    """Templates, the cache of the process, signals."""
    from django.core.cache import cache
    from django.core.signals import request_finished
    from django.http import HttpResponse
    from django.template import engines

    def show(request):
        cache.set(request.path, Page(request.path), 10)
        text = "{% for word in page.words %}<li>{{ word }}</li>{% endfor %}"
        return HttpResponse(engines["django"].from_string(text).render({"page": page_of("a/b")}))

    def finished(**_):
        RECENT.append({"time": time.time()})

    request_finished.connect(finished)
    engine = {"BACKEND": "django.template.backends.django.DjangoTemplates"}
    serve_django(show, TEMPLATES=[engine])


def fastapi():
    """Models, tasks in the background."""
    import fastapi
    import pydantic
    import uvicorn

    class Item(pydantic.BaseModel):
        number: int
        state: str
        words: list[str]

    app = fastapi.FastAPI()

    def note(item: Item) -> None:
        CACHE.put(item.number, item)

    @app.get("/item/{number}")
    async def show(number: int, background: fastapi.BackgroundTasks) -> Item:
        item = Item(number=number, state=random.choice(STATES), words=["a", str(number)])
        background.add_task(note, item)
        return item

    uvicorn.run(app, port=begin_load(), log_level="warning")


def aiohttp():
    """Asks itself, through one client."""
    import aiohttp
    from aiohttp import web

    async def inner(request):
        return web.json_response({"path": request.path, "states": STATES})

    async def show(request):
        address = f"http://127.0.0.1:{port}/inner{request.path}"
        async with request.app["client"].get(address) as answer:
            RECENT.append(await answer.json())
        return web.json_response(RECENT[-1])

    async def client(app):
        async with aiohttp.ClientSession() as app["client"]:
            yield

    app = web.Application()
    app.cleanup_ctx.append(client)
    app.router.add_get("/inner/{path:.*}", inner)
    app.router.add_get("/{path:.*}", show)
    port = begin_load()
    web.run_app(app, host="127.0.0.1", port=port, print=None)


def tornado():
    """Requests that wait for the next message, which comes from time to time."""
    from tornado import ioloop, web
    from tornado.concurrent import Future

    waiters = set()

    class Show(web.RequestHandler):
        async def get(self):
            waiters.add(waiter := Future())
            ioloop.IOLoop.current().call_later(0.02, waiter.set_result, self.request.path)
            self.write(await waiter)
            waiters.discard(waiter)
            CACHE.put(self.request.path, Page(self.request.path))

    async def main():
        web.Application([("/.*", Show)]).listen(begin_load(), "127.0.0.1")
        ioloop.PeriodicCallback(lambda: RECENT.append(Page("tick")), 100).start()
        await asyncio.Event().wait()

    asyncio.run(main())


def celery():
    """Tasks, some of which fail and are tried again."""
    import celery

    app = celery.Celery(broker="memory://")
    app.conf.task_ignore_result = True

    @app.task(bind=True, max_retries=1)
    def work(self, number):
        RECENT.append({"number": number, "state": STATES[number % 3]})
        if number % 10 == 0:
            raise self.retry(countdown=1)

    def send():
        for number in ticks():
            work.delay(number)

    threading.Thread(target=send, daemon=True).start()
    app.worker_main(["--quiet", "worker", "--pool=solo", "--loglevel=critical"])


def sqlalchemy():
    """A session for each request, which writes, reads and deletes."""
    from sqlalchemy import create_engine, delete, select
    from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

    class Base(DeclarativeBase):
        pass

    class Order(Base):
        __tablename__ = "orders"
        number: Mapped[int] = mapped_column(primary_key=True)
        state: Mapped[str]

    engine = create_engine("sqlite://")
    Base.metadata.create_all(engine)
    for number in ticks():
        with Session(engine) as session:
            session.add(Order(number=number, state=random.choice(STATES)))
            session.execute(delete(Order).where(Order.number < number - 100))
            session.commit()
            found = session.scalars(select(Order).where(Order.state == "open")).all()
            RECENT.append(len(found))


def gunicorn():
    """Two workers, a cache in each."""

    def app(environ, start_response):
        path = environ["PATH_INFO"]
        page = page_of(path)
        CACHE.put(path, {"page": page, "agent": environ.get("HTTP_USER_AGENT")})
        lines = [f"{number}: {word}" for number in range(200) for word in page.words]
        start_response("200 OK", [("Content-Type", "text/plain")])
        return ["\n".join(lines).encode()]

    serve_gunicorn(app, workers=2)


def twisted():
    """Connections that are forgotten when they are closed."""
    from twisted.internet import protocol, reactor, task

    class Show(protocol.Protocol):
        def connectionMade(self):  # noqa: N802 - twisted's name
            self.factory.clients.add(self)

        def connectionLost(self, reason):  # noqa: N802
            self.factory.clients.discard(self)

        def dataReceived(self, data):  # noqa: N802
            CACHE.put(data, Page(data.decode()))
            answered = task.deferLater(
                reactor, 0.02, self.transport.write, b"HTTP/1.0 200 OK\r\n\r\n"
            )
            answered.addCallback(lambda _: self.transport.loseConnection())

    factory = protocol.Factory.forProtocol(Show)
    factory.clients = set()
    reactor.listenTCP(begin_load(), factory, interface="127.0.0.1")
    reactor.run()


async def rows_of(page):
    for row in range(3):
        yield page, row


async def asyncio_main():
    queue, running = asyncio.Queue(), set()

    async def work():
        while True:
            page = await queue.get()
            RECENT.append([row async for row in rows_of(page)])

    async def late(page):
        try:
            await asyncio.wait_for(asyncio.Event().wait(), random.random())
        except TimeoutError:
            queue.put_nowait(page)

    async def answer(reader, writer):
        task = asyncio.create_task(late(Page((await reader.readline()).decode())))
        running.add(task)
        task.add_done_callback(running.discard)
        writer.write(b"HTTP/1.0 200 OK\r\n\r\nok")
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", begin_load()):
        await asyncio.gather(*(work() for _ in range(3)))


def plain_asyncio():
    """A queue and its workers, tasks that time out."""
    asyncio.run(asyncio_main())


def lxml_pillow():
    """Documents and images, of which the last ones are kept."""
    from lxml import etree
    from PIL import Image

    images = collections.deque(maxlen=50)
    text = f"<feed>{'<item><title>of today</title></item>' * 50}</feed>"
    for number in ticks():
        titles = etree.fromstring(text).xpath("//title/text()")
        RECENT.append(titles[number % 50])
        image = Image.new("RGB", (200, 100 + number % 50), (number % 256, 0, 0))
        image.thumbnail((100, 100))
        image.save(into := io.BytesIO(), "PNG")
        images.append((image, into.getvalue()))


def numpy():
    """A window of the last values, and sums by key."""
    import numpy as np

    window, sums = collections.deque(maxlen=200), {}
    for number in ticks():
        values = np.random.default_rng(number).normal(size=1000)
        window.append(values)
        key = f"sensor-{number % 100}"
        sums[key] = sums.get(key, 0.0) + float(values.sum())
        np.sort(np.concatenate(window))


globals()[sys.argv[1]]()
