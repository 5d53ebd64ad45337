"""The user's choices, and everything that changes them.

The screens' actions call ``State``, which passes new settings to the refresher. Everything
runs in the drawing thread, except for jobs passed to the refresher's thread.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final, TypeVar

from textual.app import App
from textual.screen import Screen

from tracelloc.errors import TracellocError
from tracelloc.model.process import ALL_PROCESSES, RUNNING_PROCESSES
from tracelloc.show.analysis import differences as analysis
from tracelloc.show.filters import Filters
from tracelloc.show.filters.files import append_rules
from tracelloc.show.filters.rules import Rule
from tracelloc.show.presentation.calltree import ListedFunction, listed_function
from tracelloc.show.presentation.profile import Metric
from tracelloc.show.tables import Column
from tracelloc.text import NS_PER_S, format_duration, plural
from tracelloc.ui.chart import CHART
from tracelloc.ui.details import DetailScreen
from tracelloc.ui.dialogs import ExportDialog, FilterDialog, LimitsDialog, QuitDialog
from tracelloc.ui.flame import FLAME
from tracelloc.ui.frames import first_line, lines_of, stack_text
from tracelloc.ui.functions import FUNCTIONS, FunctionKey
from tracelloc.ui.helpscreen import HelpScreen
from tracelloc.ui.histogramviews import AGES, SIZES, THREADS
from tracelloc.ui.objectview import OBJECTS
from tracelloc.ui.output import LOG, OUTPUT
from tracelloc.ui.picker import PickerScreen
from tracelloc.ui.picture import Picture
from tracelloc.ui.player import Player
from tracelloc.ui.processview import PROCESSES, RESIDENT, show_process
from tracelloc.ui.refresher import Refresher
from tracelloc.ui.sourcescreen import SourceScreen
from tracelloc.ui.spanplot import SpanPlot
from tracelloc.ui.stackviews import BLOCKS, STACKS, TYPES
from tracelloc.ui.tree import TREE
from tracelloc.ui.view import VERDICT_CHOICES, Difference, Settings, Sorting, TraceSource, View

# All views, in the order of their tabs.
VIEWS: Final[tuple[View[Any], ...]] = (
    STACKS, BLOCKS, FLAME, TREE, SIZES, AGES, THREADS, LOG, PROCESSES, OUTPUT, RESIDENT, OBJECTS,
    FUNCTIONS, TYPES, CHART,
)  # fmt: skip


T = TypeVar("T")
MOST_MARKS: Final = 16  # Number of marks that are kept, the newest ones
OLD_S: Final = 3.0  # Age from which the snapshot on the screen is marked as old
# After this tracing time quitting asks first, as unwritten data would be lost.
_ASKED_FROM_S: Final = 60.0


class State:
    """The state of the screen: settings, newest picture, and the methods that change them."""

    def __init__(self, app: App[int], source: TraceSource, refresher: Refresher) -> None:
        self.app = app
        self.source = source
        # The views that this run has, as tabs
        self.views = tuple(view for view in VIEWS if view.exists(source))
        self.settings = Settings(self.views[0])
        self.picture: Picture | None = None
        self.ended = ""  # Why there are no new pictures
        self.frozen = False
        # Moves through the snapshots of a recording; None if a process is traced
        self.player = None if source.recorded is None else Player(self, source.recorded, refresher)
        # Whether the shown process stays as more come
        self.has_chosen_process = not source.has_many or self.player is not None
        self._renewed_s = 0.0  # When the picture's snapshot came
        self._last_process = 0
        self._marks_set = 0
        self._refresher = refresher

    @property
    def condition(self) -> str:
        if self.player is not None:
            return self.player.condition()
        old = f"{format_duration(int(self.age_s))} old" if self.age_s >= OLD_S else ""
        return self.ended or ("FROZEN (space)" if self.frozen else old)

    @property
    def age_s(self) -> float:
        """How long no new snapshot has come; 0 if none is to come."""
        is_live = self.player is None and self._refresher.interval_s is not None
        is_waiting = is_live and not self.ended and not self.frozen and self.picture is not None
        return time.monotonic() - self._renewed_s if is_waiting else 0.0

    def take_picture(self, picture: Picture) -> None:
        if self.picture is None or picture.snapshot is not self.picture.snapshot:
            self._renewed_s = time.monotonic()
        self.picture = picture

    def change(self, **fields: Any) -> None:
        self.replace_settings(replace(self.settings, **fields))

    def replace_settings(self, new: Settings) -> None:
        if new != self.settings:
            self.has_chosen_process |= new.process != self.settings.process
            self.settings = new
            self._refresher.ask(new)

    # --- order and limits ---

    def sort(self, column: Column[Any]) -> None:
        now, name = self.settings.sorting, self.settings.view.name
        same = now.column == column.key
        new = Sorting(column.key, not now.descending if same else column.descending)
        self.change(sortings={**self.settings.sortings, name: new})

    def next_metric(self) -> None:
        # Processes have their peaks at different times: there is no joint one.
        together = self.settings.process < 0
        metrics = [metric for metric in Metric if not (together and metric is Metric.PEAK)]
        at = metrics.index(self.settings.metric) + 1
        self.change(metric=metrics[at % len(metrics)])

    def next_verdicts(self) -> None:
        at = VERDICT_CHOICES.index(self.settings.verdicts) + 1
        self.change(verdicts=VERDICT_CHOICES[at % len(VERDICT_CHOICES)])

    def toggle_chart(self) -> None:
        self.change(charts_stacks=not self.settings.charts_stacks)

    def ask_limits(self) -> None:
        self.ask(LimitsDialog(self.settings.limits), lambda found: self.change(limits=found))

    def ask(self, screen: Screen[T], use: Callable[[T], None]) -> None:
        """Shows a screen, whose result is used unless the user leaves it without one."""

        def take(found: T | None) -> None:
            if found is not None:
                use(found)

        self.app.push_screen(screen, take)

    # --- threads ---

    def toggle_threads(self) -> None:
        limits = self.settings.limits
        if limits.tid is not None:
            self.change(limits=replace(limits, tid=None))
        else:
            self.step_thread(1)

    def step_thread(self, step: int) -> None:
        blocks = None if self.picture is None else self.picture.snapshot.blocks
        # Nobody knows which thread allocated blocks from before tracing.
        tids = [] if blocks is None else sorted(set(blocks.tid.tolist()) - {0})
        if len(tids) < 2 and self.settings.limits.tid is None:
            self.app.notify("One thread has allocated all blocks since tracing began", timeout=3)
        if len(tids) < 2:
            return
        now = self.settings.limits.tid
        at = (0 if step > 0 else -1) if now not in tids else tids.index(now) + step
        self.change(limits=replace(self.settings.limits, tid=tids[at % len(tids)]))

    # --- processes ---

    def next_processes(self) -> Settings:
        number, picture = self.settings.process, self.picture
        if picture is None or (number >= 0 and picture.process_count < 2):
            more = "so far" if self.source.has_many else "traced (--follow traces children too)"
            self.app.notify(f"One process {more}", timeout=3)
            return self.settings
        merged = picture.snapshot.merged
        new = self._last_process
        if number >= 0:
            self._last_process, new = number, ALL_PROCESSES
        elif number == ALL_PROCESSES and merged is not None and merged.ended_count:
            new = RUNNING_PROCESSES
        return show_process(new, self.settings)

    def show_together(self, picture: Picture) -> None:
        """Shows all processes once there are two, unless the user has chosen, or compares."""
        settings, runtimes = self.settings, picture.snapshot.runtimes
        # Not a pre-fork server's parent, in which nothing happens.
        is_idle = not picture.header.allocations_per_s
        has_objects = any(each.counts_objects for each in runtimes) and not is_idle
        if picture.process_count > 1 and not self.has_chosen_process and not has_objects:
            self.has_chosen_process = True
            if not settings.marks and settings.baseline is None:
                self.replace_settings(show_process(ALL_PROCESSES, settings))

    # --- moments ---

    def toggle_baseline(self) -> None:
        if self.settings.baseline is not None:
            self.change(baseline=None)
        elif self.picture is not None:
            self.change(baseline=analysis.mark(self.picture.snapshot, "baseline"))
            self.app.notify("Only blocks allocated from now on (b shows all)", timeout=3)

    def set_mark(self) -> None:
        if self.picture is None:
            return
        self._marks_set += 1
        mark = analysis.mark(self.picture.snapshot, f"m{self._marks_set}")
        # Each mark keeps the figures of all stacks.
        self.change(marks=(*self.settings.marks, mark)[-MOST_MARKS:])
        self.app.notify(f"Mark {mark.name} set (d shows changes since)", timeout=2)

    def choose_span(self) -> None:
        line = None if self.picture is None else self.picture.line
        at_ns = None if line is None else round(float(line.uptimes_s[line.index]) * NS_PER_S)
        if not self.app.screen.query_one(SpanPlot).begin(at_ns):
            self.app.notify("The terminal is too small for the chart (needs 60×16)", timeout=3)

    def next_difference(self) -> None:
        marks = self.settings.marks
        if not marks:
            self.app.notify("Set a mark first (M)", timeout=2)
            return
        pairs = zip(marks[-2::-1], marks[:0:-1], strict=True)
        steps = [Difference(marks[-1]), *(Difference(*pair) for pair in pairs)]
        now = self.settings.difference
        at = steps.index(now) + 1 if now in steps else 0
        self.change(difference=[*steps, None][at])

    def toggle_freeze(self) -> None:
        self.frozen = not self.frozen
        self._refresher.set_frozen(self.frozen)

    # --- filters ---

    def change_filters(self, job: Callable[[Filters], None]) -> None:
        """Changes the filters in the refresher's thread, which alone may use them."""

        def guarded() -> None:
            try:
                job(self.source.filters)
            except TracellocError as error:
                self.app.call_later(self.app.notify, str(error), severity="error")

        self._refresher.run_job(guarded)

    def toggle_filters(self) -> None:
        on = not self.settings.filters_on
        self.change(filters_on=on)
        self.change_filters(lambda filters: filters.set_enabled(on))

    def save_rules(self, rules: Sequence[Rule]) -> None:
        try:
            path = append_rules(self.source.invoker, rules)
        except TracellocError as error:
            self.app.notify(str(error), severity="error", markup=False)
        else:
            self.app.notify(f"Saved to {path}", markup=False)

    def show_filters(self) -> None:
        def show(filters: Filters) -> None:
            dialog = FilterDialog(self, filters.groups, filters.added, filters.effects())
            self.app.call_later(self.app.push_screen, dialog)

        self.change_filters(show)

    # --- screens ---

    def open_details(self, stack: int) -> None:
        self.change(selected=stack)
        self.app.push_screen(DetailScreen(self, stack))

    def open_source(self, function: ListedFunction) -> None:
        self.change(listed_function=function)
        self.app.push_screen(SourceScreen(self, function))

    def list_source(self, key: object) -> None:
        details = None if self.picture is None else self.picture.details
        if isinstance(key, FunctionKey):
            self.open_source(ListedFunction(key.step))
        elif details is None:
            self.app.notify("Choose a stack or a function first (1, F)", timeout=3)
        else:
            lines = lines_of(details.stack, details.figures.stat.index, everything=False)
            frame = lines[first_line(lines)].frame if lines else None
            if frame is None or frame.file is None:
                self.app.notify("No source lines for this stack (Enter: why)", timeout=3)
            else:
                self.open_source(listed_function(frame))

    def ask_export(self) -> None:
        if (picture := self.picture) is not None:
            self.app.push_screen(ExportDialog(picture.snapshot, picture.namer.copy()))

    def show_help(self, words: str = "") -> None:
        self.app.push_screen(HelpScreen(self.app.screen, words))

    def copy_stack(self) -> None:
        details = None if self.picture is None else self.picture.details
        if details is not None:
            self.app.copy_to_clipboard(stack_text(details.stack))
            self.app.notify(f"Copied {plural(len(details.stack.frames), 'frame')}", timeout=2)

    def leave(self) -> None:
        """Quits; asks first if more than ``_ASKED_FROM_S`` seconds of tracing would be lost."""
        is_asked = isinstance(self.app.screen, QuitDialog)
        elapsed_ns = 0 if self.picture is None else self.picture.snapshot.elapsed_ns
        if self.source.writes_files or is_asked or elapsed_ns < _ASKED_FROM_S * NS_PER_S:
            self.app.exit()
            return

        acts = {QuitDialog.QUIT: self.app.exit, QuitDialog.EXPORT: self.ask_export}
        self.ask(QuitDialog(elapsed_ns), lambda choice: acts[choice]())

    def choose_process(self) -> None:
        """Opens the list of processes; tracing continues until the user chooses another one."""
        if self.source.last_output is not None:
            self.app.notify("tracelloc started this program; it ends with the screen", timeout=3)
            return
        if self.source.recorded is not None:
            self.app.notify("A recording can't switch to another process", timeout=3)
            return
        now = None if self.picture is None else self.picture.snapshot.target.pid
        note = "tracing continues, Esc goes back to it"
        picker: Screen[int | None] = PickerScreen(self.source.list_processes, note=note)
        self.ask(picker, lambda pid: None if pid == now else self.app.exit(pid))
