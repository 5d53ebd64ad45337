"""What is said of a stack: leak, cache, busy and why, as lines for the screen."""

from __future__ import annotations

from rich.text import Text

from tracelloc.snapshots.snapshot import Snapshot
from tracelloc.ui.picture import Details, Picture
from tracelloc.ui.stacks import VERDICT_STYLES
from tracelloc.units import about_of, format_size
from tracelloc.verdict.judgement import Verdict
from tracelloc.views.suspects import headline, sentences, suspects_of


def verdict_text(details: Details, snapshot: Snapshot) -> Text:
    """The verdict, of a suspect with its rate; empty before there was time to look."""
    judgement = details.judgement
    if judgement is None:
        return Text("")
    style = VERDICT_STYLES.get(judgement.verdict, "bold")
    if details.suspect is None:
        return Text(judgement.verdict.value, style)
    about = about_of(snapshot.sample_bytes)
    return Text(headline(judgement, snapshot.now_ns, about=about), style)


def reasons(details: Details) -> list[str]:
    """Why, in sentences; nothing before there was time to look."""
    if details.suspect is not None:
        return list(sentences(details.suspect))
    return [] if details.judgement is None else [details.judgement.evidence]


def verdict_line(details: Details, picture: Picture) -> Text | None:
    """Verdict and sentence in one line; None before there was time to look."""
    if details.judgement is None:
        return None
    return Text.assemble(verdict_text(details, picture.snapshot), f": {details.judgement.evidence}")


def leaks_text(snapshot: Snapshot) -> Text | None:
    """For the header: how many leaks there are and how fast; None without any suspect."""
    judgements = [suspect.judgement for suspect in suspects_of(snapshot)]
    for verdict, words in ((Verdict.LEAKING, "leaking"), (Verdict.GROWING, "growing")):
        rates = [j.rate_bytes_per_min for j in judgements if j.verdict is verdict]
        if rates:
            about = about_of(snapshot.sample_bytes)
            rate = f"{about}{format_size(round(sum(rates)))}/min"
            return Text(f"{len(rates)} {words} {rate}", VERDICT_STYLES[verdict])
    return None
