"""Coverage-guided fuzzing of one reader: ``python -m tests.fuzz READER SECONDS [DIRECTORY]``.

Needs atheris (PyPI). What it finds is to be kept in ``tests/data/fuzz/READER``; the corpus goes
to the directory. Memory is limited to 2 GiB and a call to 60 s, which may be spent waiting.
"""

import sys
import tempfile
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["tracelloc"]):
    from tests.fuzz.readers import READERS, seeds


def main() -> None:
    reader, seconds, *more = sys.argv[1:]
    directory = Path(more[0] if more else tempfile.mkdtemp(prefix="tracelloc-fuzz-"))
    corpus = directory / reader
    corpus.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        for number, seed in enumerate(seeds(reader, Path(scratch))):
            (corpus / f"seed{number}").write_bytes(seed)
    kept = Path(__file__).parents[1] / "data" / "fuzz" / reader
    options = [f"-max_total_time={seconds}", "-timeout=60", "-rss_limit_mb=2048", "-max_len=65536"]
    places = [str(corpus), *([str(kept)] if kept.is_dir() else [])]
    atheris.Setup(
        [sys.argv[0], *options, f"-artifact_prefix={directory}/{reader}-", *places], READERS[reader]
    )
    atheris.Fuzz()


main()
