"""The page on recognition says what the tables of the code say."""

from keyhole.learners.recognising.decisions import ADVICE, LABELS
from keyhole.learners.recognising.identities import IDENTITIES
from keyhole.learners.recognising.table import CLASSES, FINDINGS
from keyhole.learners.verifying.rules import RULES
from support.paths import ROOT


def list_rules():
    return [f"| {name} | {rule.sentence} |" for name, rule in RULES.items()]


def list_findings():
    for name, row in FINDINGS.items():
        rules = dict.fromkeys(IDENTITIES[identity].rule for identity in row.identities)
        excludes = ", ".join(row.excludes) or "nothing"
        yield f"| {name} | {row.sentence} | {', '.join(rules)} | {excludes} |"


def list_labels():
    for row in LABELS:
        when = [*row.facts, *(f"not {fact}" for fact in row.bars)]
        suggests = ", ".join(row.suggests) or "nothing"
        yield f"| {row.label} | {', '.join(when) or 'else'} | {suggests} | {row.sentence} |"


def list_advice():
    return [f"| {label} | {words} |" for label, words in ADVICE.items()]


def list_classes():
    return [f"| {name} | {words} |" for name, words in CLASSES.items()]


def test_the_page_holds_the_tables_of_the_code_line_by_line():
    lines = (ROOT / "docs" / "recognition.md").read_text(encoding="utf-8").splitlines()
    rows = [*list_classes(), *list_rules(), *list_findings(), *list_labels(), *list_advice()]
    # Heads and rules of the five tables begin with a bar too.
    table = [line for line in lines if line.startswith("| ") and not line.startswith("| ---")]
    heads = [line for line in table if line not in rows]
    assert [line for line in rows if line not in table] == []
    assert len(heads) == 6 + CALLS
    assert [line for line in table if line in rows] == rows


def test_every_label_has_its_advice():
    assert list(ADVICE) == list(dict.fromkeys(row.label for row in LABELS))


# Lines of the table of calls, which is prose.
CALLS = 11
