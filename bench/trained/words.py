"""Sentences as the numbers of their tokens, from the vocabulary file in a wheel."""

from __future__ import annotations

import re
import unicodedata

import numpy as np

SENTENCES = (
    "The black box answers every question, and every answer gives something away.",
    "How many queries does it take to copy one attention layer?",
    "A sentence encoder maps sentences to vectors, so that similar sentences lie close together.",
    "Rain fell on the old harbour while the fishermen mended their nets.",
    "Is this the same model, or only one that answers alike?",
    "Twelve heads look at the same words, each in its own way.",
    "Prices rose by 3.5 percent in the second quarter of 2021, analysts said.",
    "Das ist ein Satz, den das Modell selten gesehen hat.",
)
REACTIONS = (
    "CC(C)S.CN(C)C=O.Fc1cccnc1F.O=C([O-])[O-].[K+].[K+]>>CC(C)Sc1ncccc1F",
    "CCO.O=C(O)c1ccccc1>>CCOC(=O)c1ccccc1",
    "BrCc1ccccc1.OCCN1CCOCC1>>c1ccc(COCCN2CCOCC2)cc1",
)
_SMILES = re.compile(
    r"\[[^\]]+]|Br?|Cl?|N|O|S|P|F|I|b|c|n|o|s|p|\(|\)|\.|>>|=|#|-|\+|\\|/|:|~|@|\?|>|\*|\$|%[0-9]{2}|[0-9]"
)


def vocabulary(text: str) -> dict[str, int]:
    """The number of every token; one stands on every line of the file."""
    return {token: number for number, token in enumerate(text.splitlines())}


def word_pieces(sentence: str, known: dict[str, int]) -> np.ndarray:
    """A sentence by WordPiece: lower case, no accents, then for every word the longest beginnings
    that are known.
    """
    plain = unicodedata.normalize("NFD", sentence.lower())
    words = re.findall(
        r"\w+|[^\w\s]",
        "".join(c for c in plain if unicodedata.category(c) != "Mn").replace("_", " _ "),
    )
    pieces = [piece for word in words for piece in _pieces(word, known)]
    return np.array([known["[CLS]"], *pieces, known["[SEP]"]])


def _pieces(word: str, known: dict[str, int]) -> list[int]:
    found, start = [], 0
    while start < len(word):
        ends = range(len(word), start, -1)
        marked = ((end, ("##" if start else "") + word[start:end]) for end in ends)
        piece = next(((end, known[part]) for end, part in marked if part in known), None)
        if piece is None:
            return [known["[UNK]"]]
        start = piece[0]
        found.append(piece[1])
    return found


def smiles(reaction: str, known: dict[str, int]) -> np.ndarray:
    """A reaction atom by atom."""
    pieces = [known.get(part, known["[UNK]"]) for part in _SMILES.findall(reaction)]
    return np.array([known["[CLS]"], *pieces, known["[SEP]"]])
