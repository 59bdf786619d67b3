"""Columns of rows in words, for axes, legends and expectations."""

from __future__ import annotations

_STATISTICS = {"max": "largest", "min": "least", "median": "median", "mean": "mean"}
# Columns whose own names say too little; every other name is read as it stands.
_WORDS = {
    "accuracy": "share of labels right",
    "aligned": "share of attention on the positions named",
    "asked": "queries, verification apart",
    "curve.aligned": "share of attention on the positions named",
    "curve.errors": "error",
    "curve.steps": "step of training",
    "embed": "width m of queries and keys",
    "error": "error",
    "error_bar": "error bar",
    "errors": "error",
    "fresh_error": "error on fresh questions",
    "fresh_error.relative": "relative error on fresh questions",
    "fresh_error.sequences": "fresh questions",
    "last_errors": "error at the last token",
    "lengths.errors": "error",
    "lengths.lengths": "tokens of an input",
    "q": "positions a token names, q",
    "queries.tokens": "tokens asked",
    "queries.total": "queries",
    "ratio": "queries per parameter",
    "record": "kind of record",
    "round_trip.distance": "distance of a parameter",
    "seconds.oracle": "seconds waited for answers",
    "seconds.total": "seconds",
    "success": "share recovered",
}


def spell_column(column: str) -> str:
    """The name of a column in words: `record.error.max` is `largest error`."""
    name = column.removeprefix("record.").removeprefix("job.")
    # A job's ratio is how much is measured, a record's what was paid.
    if name in _WORDS and column != "job.ratio":
        return _WORDS[name]
    rest, _, last = name.rpartition(".")
    if rest and last in _STATISTICS:
        return spell_statistic(last, rest)
    return name.replace(".", " ").replace("_", " ")


def spell_statistic(statistic: str, column: str) -> str:
    """A statistic of a column in words."""
    return f"{_STATISTICS[statistic]} {spell_column(column)}"
