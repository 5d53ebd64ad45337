"""Sessions in this process, which tests look into."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

from tests.harness import Target
from tracelloc.record.kernel.captureconfig import CaptureConfig
from tracelloc.record.process.procfs import Process
from tracelloc.record.session.config import TraceConfig
from tracelloc.record.session.session import Session
from tracelloc.record.session.sessionstart import attach_to


@contextmanager
def tracing(target: Target, *capture: CaptureConfig, **config: Any) -> Iterator[Session]:
    """A session on the target, with what ``TraceConfig`` takes."""
    with closing(attach_to(Process(target.pid), TraceConfig(*capture, **config))) as session:
        yield session
