"""Predictions on a terminal: a table per document."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from labelwise.cli.terminal import echo
from labelwise.formatting import cut, printable

if TYPE_CHECKING:
    from rich.table import Table

    from labelwise.methods.base import Method
    from labelwise.runs.documents import Request
    from labelwise.runs.prediction_writers import Predicted, Suggestion

MIN_WIDTH = 10
INDENT = 2


def on_terminal(output: str, to: str | None) -> bool:
    """Whether predictions are shown as tables: on a terminal, unless another output or format is named."""
    return output == "-" and to is None and sys.stdout is not None and sys.stdout.isatty()


class PredictionTable:
    """Prints batches of predictions; cells that do not fit the terminal are cut."""

    def __init__(self, model: Method, request: Request) -> None:
        from rich.console import Console

        self.model, self.request = model, request
        self.titles = not request.is_the_text and not (request.documents == "-" and sys.stdin.isatty())
        self.console = Console(highlight=False)

    def __call__(self, batch: Predicted) -> None:
        """Print the documents of a batch."""
        for row, found in enumerate(batch.suggestions(self.model.label_texts_)):
            if self.titles:
                text = "" if batch.texts is None else batch.texts[row]
                self._print_title(batch.ids[row], text)
            if found:
                self.console.print(self._table(found))
            else:
                echo(f"{' ' * INDENT}no label{'' if self.request.threshold is None else ' reaches the threshold'}")
            echo("")

    def _print_title(self, name: str, text: str) -> None:
        from rich.text import Text

        title = cut(printable(f"{name}  {text[:1000]}"), self.console.width - 1)
        self.console.print(Text(title, style="bold"), no_wrap=True, crop=True)

    def _table(self, found: list[Suggestion]) -> Table:
        from rich.table import Table
        from rich.text import Text

        from labelwise.runs.prediction_writers import score_name, score_text

        table = Table(box=None, pad_edge=False, padding=(0, INDENT, 0, 0), header_style="dim")
        table.add_column("")
        table.add_column(score_name(self.model), justify="right", no_wrap=True)
        with_texts = self.model.label_texts_ is not None
        names = ["label", *(["text"] if with_texts else []), *(["words"] if self.request.explain else [])]
        rows = []
        for one in found:
            cells = [one.label, *([one.text or ""] if with_texts else [])]
            if self.request.explain:
                cells.append(", ".join(one.words or ()))
            rows.append([cut(printable(cell), self.console.width) for cell in cells])
        for name, column in zip(names, zip(*rows, strict=True), strict=True):
            widest = min(MIN_WIDTH, max(map(len, column)))
            table.add_column(name, no_wrap=True, overflow="ellipsis", min_width=widest)
        for one, cells in zip(found, rows, strict=True):
            table.add_row("", score_text(self.model, one.score), *map(Text, cells))
        return table
