"""Reading the target's files in a process of its own, which has no rights and may die.

``client`` starts it and asks, ``workerfile`` is one file as it is asked about; ``service`` is what
runs in it, and ``channel`` is between both.
"""

from tracelloc.worker.client import WORKER, FileReadError, FileWorker
from tracelloc.worker.workerfile import WorkerFile

__all__ = ["WORKER", "FileReadError", "FileWorker", "WorkerFile"]
