"""Bars in terminals and notebooks; where there is neither, such as in a log file, there is none."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from keyhole.drawing.html import Markup, element, join_markup

if TYPE_CHECKING:
    from rich.progress import Progress


@runtime_checkable
class ProgressBar(Protocol):
    """Something that shows how far one is, until it is closed."""

    def advance(self, done: int, /) -> None:
        """So many more were answered, or done."""
        ...

    def close(self) -> None:
        """Take it away."""
        ...


def open_bar(title: str, expected: int) -> ProgressBar | None:
    """The bar that fits where we run; None where nobody would see it move.

    Args:
        title: what is going on.
        expected: how many sequences the plan foresees.
    """
    show = _find_notebook()
    if show is not None:
        return NotebookBar(title, expected, show)
    return TerminalBar(title, expected) if sys.stderr.isatty() else None


# Shows markup in the place of what was shown before.
Show = Callable[[Markup], None]


def _find_notebook() -> Show | None:
    """How the notebook that runs us shows markup, if there is one."""
    marimo: Any = sys.modules.get("marimo")
    if marimo is not None and marimo.running_in_notebook():
        return lambda body: marimo.output.replace(marimo.Html(str(body)))
    ipython: Any = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    # A shell of IPython in a terminal has no kernel: it gets the bar of a terminal.
    return None if getattr(shell, "kernel", None) is None else _open_display()


def _open_display() -> Show:
    display: Any = sys.modules["IPython"].display
    handle = display.display(display.HTML(""), display_id=True)
    return lambda body: handle.update(display.HTML(str(body)))


@dataclass(slots=True)
class NotebookBar:
    """An element of HTML that is replaced as it grows, a hundred times at most; no script."""

    title: str
    expected: int
    show: Show
    answered: int = 0
    _percent: int = field(default=-1, init=False)

    def advance(self, sequences: int) -> None:
        """So many more were answered."""
        self.answered += sequences
        percent = min(100, 100 * self.answered // max(self.expected, 1))
        if percent > self._percent:
            self._percent = percent
            self.show(self._draw())

    def close(self) -> None:
        """Take it away."""
        self.show(Markup(""))

    def _draw(self) -> Markup:
        # Plans foresee what is usual: a recovery may ask more.
        most = max(self.expected, self.answered)
        told = f" {self.title}: {self.answered:,} of about {most:,} sequences"
        bar = element("progress", max=str(most), value=str(self.answered), aria_label=self.title)
        return join_markup(bar, told)


class TerminalBar:
    """A line on standard error that is drawn over itself, and is gone at the end."""

    def __init__(self, title: str, expected: int) -> None:
        """Start it."""
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeRemainingColumn,
        )

        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
        )
        self._progress: Progress = Progress(*columns, console=Console(stderr=True), transient=True)
        self._task = self._progress.add_task(title, total=expected)
        self._progress.start()

    def advance(self, sequences: int) -> None:
        """So many more were answered."""
        self._progress.advance(self._task, sequences)

    def close(self) -> None:
        """Take it away."""
        self._progress.stop()
