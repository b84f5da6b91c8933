"""Detect the answers of shown questions in a proposed text, by comparing strings.

This is the second line of defence and can be evaded, by a translation for example. The first is
provenance: a text is not judged on questions that its author was shown (`types.Instruction.shown`).
"""

import re
import unicodedata
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import accumulate, pairwise

from cotune.types import Task

_LATEX = re.compile(r"\\[A-Za-z]+")
_NUMBER_EDGE = re.compile(r"(?<=[0-9])(?=[^0-9])|(?<=[^0-9])(?=[0-9])")
_MIN_LETTERS = 4
_MAX_WORDS = 5
_SHORT = 3  # letters of a word that joins others to an answer by chance
# Combining classes of marks that are part of a letter: vowel signs, nukta, kana voicing, virama.
# Others, such as accents and points, may be left out in writing.
_INHERENT_MARKS = {0, 7, 8, 9}
# Letters with a stroke or joined letters, which Unicode does not decompose.
_PLAIN_LETTERS = str.maketrans(
    {"ø": "o", "ł": "l", "đ": "d", "ð": "d", "ħ": "h", "ı": "i", "æ": "ae", "œ": "oe", "þ": "th"}
)
_HAN = ((0x3005, 0x3007), (0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0xF900, 0xFAFF), (0x20000, 0x323AF))
_HANGUL = ((0xAC00, 0xD7A3),)
_WITHOUT_SPACES = (
    *_HAN,
    (0x3041, 0x30FF), (0x31F0, 0x31FF),  # Hiragana, Katakana
    (0x0E00, 0x0EFF),  # Thai, Lao
    (0x1000, 0x109F), (0xA9E0, 0xA9FF), (0xAA60, 0xAA7F),  # Myanmar
    (0x1780, 0x17FF),  # Khmer
)  # fmt: skip

_COMMON_WORDS = """
a about above after again all also an and answer any are area around article as ask at back be
because before below best better between both but by call called can case change check choice
claim class clear close come common compare complete condition confirm correct could date data
description detail did different direct do document does done down during each early either else
end entity error event every evidence exact example fact false far few final find first for form
found from full general get give go good group had half has have he her here high him his how i if
important in information instead into is it item its just keep key kind know known large last late
later least left less letter level life like line link list little long look low made main make
many matter maybe me mean method middle more most much must my name near need neither never new
next no none nor not note nothing now number object of off often old on once one only open or
order other our out over own page paragraph part passage people phrase place plan point possible
problem question quick rather read reason record relation result right rule same say search see
sentence set several she short should side similar simple since single small so some source start
state statement step still stop such summary sure table take task term text than that the their
them then there these they thing think this those three through time title to together too topic
total true try turn two type under unknown until up use value very view wait was way we well were
what when where whether which while who whole whose why will with without word work would write
wrong yes yet you your
zero four five six seven eight nine ten eleven twelve twenty thirty forty fifty hundred thousand
million billion second third fourth fifth double pair dozen century decade year month week day
hour minute morning evening night today season spring summer autumn winter age era period north
south east west northern southern eastern western upper lower inner outer red blue green black
white yellow brown grey gray orange
person man men woman women child children boy girl baby father mother son daughter brother sister
wife husband spouse parent family friend human body head hand eye heart brain blood bone king
queen prince princess emperor president minister senator governor mayor ambassador leader
politician lawyer judge police soldier officer army navy spy pope bishop priest saint author
writer poet journalist editor publisher painter sculptor artist architect photographer director
producer screenwriter actor actress comedian dancer singer musician composer band scientist
engineer inventor philosopher historian mathematician physicist chemist teacher professor student
doctor nurse farmer merchant manager owner founder worker driver pilot athlete coach player team
captain champion winner candidate member citizen nationality occupation
film movie documentary sitcom cartoon comic comedy tragedy drama thriller musical opera ballet
book novel story poem play biography essay dictionary song album music dance art painting
sculpture theatre theater character role show series episode television radio video magazine
newspaper game sport football soccer baseball basketball tennis golf hockey cricket rugby boxing
racing swimming chess piano guitar violin drum festival party award prize medal
company business brand product industry bank airline agency organisation organization association
committee union league club court parliament congress senate government law tax war battle treaty
peace revolution election school university college church temple castle palace tower hospital
museum library stadium hotel restaurant building house home room wall door bridge road street
railway station airport harbour harbor port city capital town village country nation county
province region district border continent island peninsula mountain hill volcano river lake sea
ocean bay coast beach forest desert valley field garden park land world earth sun moon star planet
space population currency language birthplace money price office job
science physics chemistry biology mathematics medicine economics philosophy psychology geography
history religion politics literature nature culture education technology computer machine engine
energy water air fire ice oil coal gas gold silver copper iron steel stone wood paper glass food
bread rice meat fish milk salt sugar tea coffee wine beer fruit animal mammal reptile insect dog
cat horse cow pig sheep bird snake tree plant flower grass genus species disease cancer drug car
truck ship boat train plane bicycle weapon gun sword dress clothes ring birth death marriage
"""
"""Words of instructions and names of kinds of things, which instructions contain by chance."""

_COMMON = frozenset(_COMMON_WORDS.split())


def folded(text: str) -> str:
    """Return a text in NFKC and case-folded, without accents and invisible characters.

    >>> folded("Zürich") == folded("ZU\\u0308\\u200bRICH") == "zurich"
    True
    """
    kept = (
        c
        for c in unicodedata.normalize("NFD", unicodedata.normalize("NFKC", text).casefold())
        if unicodedata.combining(c) in _INHERENT_MARKS and not _invisible(c)
    )
    return unicodedata.normalize("NFC", "".join(kept)).translate(_PLAIN_LETTERS)


def _invisible(character: str) -> bool:
    """Return whether a character has no shape: format characters, joiners, variation selectors."""
    return (
        unicodedata.category(character) == "Cf"
        or character == "\u034f"
        or _within(character, ((0x180B, 0x180F), (0xFE00, 0xFE0F), (0xE0100, 0xE01EF)))
    )


def _within(character: str, blocks: Sequence[tuple[int, int]]) -> bool:
    return any(first <= ord(character) <= last for first, last in blocks)


def words_of(text: str) -> tuple[str, ...]:
    """Return the words of a text in order, folded, without punctuation.

    Every character of a script without spaces is a word.

    >>> words_of("_Burkina_Faso_: 48km")
    ('burkina', 'faso', '48km')
    """
    parts: list[str] = []
    alone = False  # whether the last word is such a character
    for character in folded(text):
        mark = unicodedata.category(character)[0] == "M"
        if not (character.isalnum() or mark):
            parts.append(" ")
            continue
        if not mark:
            before, alone = alone, _within(character, _WITHOUT_SPACES)
            if before or alone:
                parts.append(" ")
        digit = character.isdecimal() and not character.isascii()
        parts.append(str(unicodedata.decimal(character)) if digit else character)
    return tuple("".join(parts).split())


def size(words: Iterable[str]) -> int:
    """Return the length of a text in half words: two characters of a script without spaces are one.

    >>> size(words_of("two words")), size(words_of("北京"))
    (4, 2)
    """
    return sum(1 if _within(word[0], _WITHOUT_SPACES) else 2 for word in words)


def runs(words: Sequence[str], count: int) -> set[tuple[str, ...]]:
    """Return every shortest run of consecutive words that is `count` words long; see `size`."""
    found: set[tuple[str, ...]] = set()
    end, length = 0, 0
    for start, first in enumerate(words):
        while length < 2 * count and end < len(words):
            length += size(words[end : end + 1])
            end += 1
        if length < 2 * count:
            break
        found.add(tuple(words[start:end]))
        length -= size((first,))
    return found


class _Text:
    """The letters of a text without anything between them, and where its words start and end.

    So "48 213" holds "48213", and "O u a g a d o u g o u" the city, but "to go" does not hold Togo.
    Words and numbers may touch, as in "48213km". In Korean, particles follow a name without a space,
    so a match may end within a word.
    """

    def __init__(self, text: str) -> None:
        words = words_of(text)
        self._letters = "".join(words)
        self._words = {0, *accumulate(map(len, words))}
        self._edges = self._words | {e.start() for e in _NUMBER_EDGE.finditer(self._letters)}

    def __contains__(self, words: tuple[str, ...]) -> bool:
        letters, own = "".join(words), set(accumulate(map(len, words)))
        start = self._letters.find(letters)
        while start >= 0:
            end = start + len(letters)
            if start in self._edges and (end in self._edges or _within(letters[-1], _HANGUL)):
                inner = [i for i in range(1, len(letters)) if start + i in self._words]
                pieces = [letters[i:j] for i, j in pairwise([0, *inner, len(letters)])]
                if own.issuperset(inner) or not _short_words(pieces):
                    return True
            start = self._letters.find(letters, start + 1)
        return False


def leaked_answer(candidate: str, parent: str, tasks: Iterable[Task]) -> str | None:
    """Return the first ground-truth answer that is in the candidate but not in its parent.

    An answer of more than five words counts if five in a row are shared. Skips answers of common
    words only, yes and no among them, and those of fewer than four letters or digits (two in Chinese
    and Korean), which instructions contain by chance.

    Args:
        tasks: the questions that the candidate's author was shown.
    """
    new, old = _Text(candidate), _Text(parent)
    for task in tasks:
        for answer in task.answers:
            if any(words in new and words not in old for words in _telling(answer)):
                return answer
    return None


@lru_cache(maxsize=8192)
def _telling(answer: str) -> tuple[tuple[str, ...], ...]:
    """Return the parts of an answer, in words, that give it away; () if chance explains them."""
    words = words_of(_LATEX.sub(" ", answer))
    parts = runs(words, _MAX_WORDS) or {words}
    return tuple(sorted(part for part in parts if not _by_chance(part)))


def _by_chance(words: Sequence[str]) -> bool:
    letters = sum(2 if _within(c, (*_HAN, *_HANGUL)) else 1 for word in words for c in word)
    number = all(word.isdigit() for word in words)
    return letters < _MIN_LETTERS or (not number and all(_common(word) for word in words))


def _short_words(pieces: Sequence[str]) -> bool:
    """Return whether pieces that join to a word are words such as "to" and "go", not single letters."""
    longest = max(map(len, pieces))
    return 1 < longest <= _SHORT and any(piece in _COMMON for piece in pieces)


def _common(word: str) -> bool:
    return (
        word in _COMMON
        or word.removesuffix("s") in _COMMON
        or (word.isdigit() and len(word) < _MIN_LETTERS)
    )
