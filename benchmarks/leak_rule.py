"""Measure how often the rule against leaked answers rejects harmless instructions, and finds leaks.

    python benchmarks/leak_rule.py
    python benchmarks/leak_rule.py --gold NQ-open.dev.jsonl hotpot_dev_v1_simplified.json

Harmless instructions are the paper's instruction for search agents with two to six sentences added,
composed by a fixed seed from strategies as an LLM writes them, which mention kinds of things, numbers and
example answers. Each is checked against the answers of four random questions, as after a reflection,
and against the answers of 800, as if all questions of the replay buffer had been shown. `--gold` reads the
answers from JSON or JSON Lines with a field "answer" or "answers".
"""

import argparse
import json
import random
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from cotune.methods.leaks import leaked_answer
from cotune.types import Task

PARENT = (
    "Answer the given question. You must conduct reasoning inside <think> and </think> first every time "
    "you get new information. After reasoning, if you find you lack some knowledge, you can call a search "
    "engine by <search> query </search>, and it will return the top searched results between "
    "<information> and </information>. You can search as many times as you want. If you find no further "
    "external knowledge needed, you can directly provide the answer inside <answer> and </answer> "
    "without detailed illustrations. For example, <answer> Beijing </answer>."
)

SENTENCES = (
    "{First} look up the {kind}, then the {role}.",
    "If the question compares two {kinds}, search for each {kind} on its own before you answer.",
    "Break the question into {number} smaller questions and answer them one by one.",
    "Never search for the whole question; search for one {thing} at a time.",
    "Identify the {role} first, and use the name in the next query.",
    "When a question asks when something happened, give only the year, such as {year}.",
    "For a yes/no question answer with yes or no and nothing else.",
    "Write the shortest answer that is complete: '{place}' rather than 'the {kind} is in {place}'.",
    "After at most {digit} searches, decide on the best-supported {thing}.",
    "Check that the {kind} in the results is the one that the question means, not another of the same name.",
    "If the results do not mention the {role}, rephrase the query with the {kind}'s full title.",
    "Keep queries under {digit} words and leave out question words.",
    "List what is known and what is missing inside <think> before every search.",
    "Compare dates as numbers: the earlier {kind} is the one with the smaller year.",
    "Resolve descriptions such as 'the {role} of the {kind}' to a name before using them.",
    "Prefer evidence from the {thing} itself over general knowledge.",
    "Do not guess a {kind} from memory; verify it in a document first.",
    "When the question has several conditions, check every one of them against the evidence.",
    "State the {thing} in the form that the question asks for, without titles or honorifics.",
    "If two sources disagree, search once more for the {thing} and the {role}.",
    "Answer with a {size} only if the question asks how {many}.",
    "Where a question asks for a {region}, do not answer with a {kind}.",
    "Begin with the rarest name in the question, since it narrows the results the most.",
    "If the {role} has several {kinds}, find the list and count them.",
    "Use the {nation} spelling of a name if the question does.",
    "Stop searching once the evidence names the {thing} in so many words.",
    "Give dates as in the question, for example {day} {month} {year}.",
    "A query like '{place} {thing}' works better than a full sentence.",
    "Before answering, say in one sentence why the evidence supports the answer.",
    "If the first search fails, try the {kind} together with its {region}.",
    "Do not repeat a query; change at least one word, such as {kind} to {thing}.",
    "Say which {number} facts are needed, and find each of them from {direction} to {direction}.",
    "Pay attention to words like 'first', 'only' and 'last', which single out one {kind}.",
    "For questions about {topic}, search for the {role} and the {kind} separately.",
    "Copy names from the results letter by letter; do not translate them.",
    "When in doubt between {number} candidates, search for what distinguishes them.",
)  # fmt: skip
SLOTS: Mapping[str, Sequence[str]] = {
    "First": ("First", "At the start", "To begin with", "Always"),
    "kind": (
        "film", "movie", "book", "novel", "song", "album", "band", "city", "country", "river", "lake",
        "mountain", "island", "university", "company", "team", "club", "magazine", "school", "battle",
        "festival", "award", "television series", "video game", "museum", "species", "genus", "opera",
        "airline", "stadium", "newspaper", "treaty", "language", "currency", "airport", "documentary",
    ),
    "kinds": (
        "films", "books", "songs", "albums", "bands", "cities", "countries", "rivers", "people",
        "universities", "companies", "teams", "magazines", "politicians", "actors", "writers", "plants",
    ),
    "role": (
        "director", "author", "actor", "singer", "producer", "composer", "founder", "president", "king",
        "capital", "birthplace", "nationality", "spouse", "father", "mother", "writer", "owner", "coach",
        "publisher", "architect", "mayor", "screenwriter", "guitarist", "population", "architect",
    ),
    "thing": (
        "name", "place", "person", "entity", "date", "fact", "title", "number", "event", "location",
        "year of birth", "country", "organisation", "occupation", "relation", "country of origin",
    ),
    "region": ("country", "state", "county", "province", "city", "continent", "region", "district"),
    "number": ("two", "three", "four", "the two", "both", "several"),
    "digit": ("2", "3", "4", "5", "6", "8", "10", "12"),
    "size": ("number", "distance in kilometres", "percentage", "quantity"),
    "many": ("many", "much", "far", "old", "long"),
    "direction": ("left", "right", "north", "south", "the beginning", "the end"),
    "place": (
        "France", "Paris", "New York City", "Germany", "Japan", "Canada", "Rome", "London", "Egypt",
        "United States", "Lake Victoria", "Brazil", "Spain", "California", "Australia", "Vienna",
        "Mount Everest", "Chicago", "India", "Mumbai", "Italy", "Madrid", "Sydney", "Mexico City",
        "Texas", "Argentina", "Moscow", "the Nile", "Kenya", "Nairobi", "Sweden", "Stockholm", "Boston",
        "Portugal", "Lisbon", "Greece", "Athens", "Turkey", "Istanbul", "Seoul", "Tokyo", "Kyoto",
        "Peru", "Lima", "Chile", "Ireland", "Dublin", "Poland", "Warsaw", "Prague", "Oslo", "Finland",
    ),
    "nation": ("American", "British", "French", "German", "local", "original"),
    "year": tuple(map(str, range(1900, 2021))),
    "day": ("4", "12", "17", "30"),
    "month": ("May", "July", "October", "January"),
    "topic": (
        "films", "music", "geography", "sport", "history", "science", "water", "politics", "animals",
        "religion", "war", "medicine", "literature", "rock music", "football", "plants", "television",
    ),
}  # fmt: skip

GOLD = (
    "yes", "no", "yes", "no", "American", "director", "film director", "London", "England", "German",
    "1999", "China", "2009", "2013", "documentary", "2017", "1961", "Australian", "Dutch", "genus",
    "singer", "three", "World War II", "New York City", "British", "seven", "1943", "Taylor Swift",
    "rock", "2002", "Los Angeles", "William Shakespeare", "musician", "New York", "Washington, D.C.",
    "band", "Las Vegas", "Scotland", "CBS", "video game", "Europe", "flowering plants", "writer",
    "film", "movie", "city", "France", "12", "north", "water", "10", "18", "California",
    "United States", "Spanish", "four", "Norway", "Germany", "Florida", "South Africa", "Beijing",
    "the President", "Canada", "quartz", "Brazil", "Hungary", "Republican", "Barcelona", "alternative rock",
    "the Speaker of the House", "May 18, 2010", "14 December 1972", "December 1972", "one season",
    "drawings", "ten", "spiritual", "alcoholic drinks", "eastern North America", "13 seasons", "actor",
    "Chief of Protocol", "Animorphs", "Greenwich Village", "Sir Arthur Conan Doyle", "Julius Caesar",
    "Ouagadougou", "Bobby Scott", "Burkina Faso", "48,213", "Zürich", "iron", "Lake Victoria", "Paris",
    "football", "piano", "guitar", "the heart", "photosynthesis", "two years", "Queen Victoria", "1945",
    "American football", "television series", "population", "novel", "architect", "politician", "Rome",
    "the Roman Empire", "George Washington", "Bob Dylan", "red", "July 4, 1776", "Egypt", "composer",
)  # fmt: skip

LEAKS = (
    ("Ouagadougou", "If unsure, answer Ouagadougou."),
    ("Ouagadougou", "Search _Ouagadougou_ first."),
    ("Burkina Faso", "Begin with Burkina_Faso."),
    ("Burkina Faso", "Begin with BURKINA-FASO."),
    ("Ouagadougou", "首都的答案是Ouagadougou，请记住。"),
    ("中华人民共和国", "答案是中华人民共和国"),
    ("北京", "首都是北京"),
    ("東京都", "それは東京都です。"),
    ("กรุงเทพมหานคร", "คำตอบคือกรุงเทพมหานครครับ"),
    ("서울", "정답은 서울이다."),
    ("Zürich", "It is Zu\u0308rich."),
    ("Zürich", "It is Zurich."),
    ("Łódź", "It is Lodz."),
    ("Ouagadougou", "It is Ｏｕａｇａｄｏｕｇｏｕ."),
    ("Ouagadougou", "It is Ouaga\u200bdougou."),
    ("United States", "It is U n i t e d S t a t e s."),
    ("United States", "It is _United\u2060 States_."),
    ("48213", "It has 48 213 inhabitants."),
    ("48,213", "It is 48213km away."),
    ("the quick brown fox jumps over it", "Note: quick brown fox jumps over."),
)
"""An answer, and a sentence that leaks it."""


def harmless(count: int, seed: int = 0) -> list[str]:
    """Return different instructions that name no answer on purpose."""
    rng, found = random.Random(seed), dict[str, None]()
    while len(found) < count:
        added = [_filled(s, rng) for s in rng.sample(SENTENCES, rng.randint(2, 6))]
        found[" ".join((PARENT, *added))] = None
    return list(found)


def _filled(sentence: str, rng: random.Random) -> str:
    return re.sub(r"\{(\w+)\}", lambda slot: rng.choice(SLOTS[slot[1]]), sentence)


def false_positives(
    instructions: Iterable[str], answers: Sequence[Sequence[str]], shown: int, seed: int = 0
) -> float:
    """Return the share of instructions rejected, each against the answers of `shown` questions."""
    rng, rejected = random.Random(seed), list[bool]()
    for text in instructions:
        drawn = [rng.choice(answers) for _ in range(shown)]
        tasks = [Task("q", "?", tuple(gold)) for gold in drawn]
        rejected.append(leaked_answer(text, PARENT, tasks) is not None)
    return sum(rejected) / len(rejected)


def detected(leaks: Iterable[tuple[str, str]] = LEAKS) -> list[bool]:
    """Return which leaks are found, in order."""
    return [
        leaked_answer(f"{PARENT} {sentence}", PARENT, [Task("q", "?", (gold,))]) is not None
        for gold, sentence in leaks
    ]


def read_answers(path: Path) -> list[list[str]]:
    """Return the answers of each question in a file."""
    text = path.read_text(encoding="utf-8")
    rows = json.loads(text) if text.startswith("[") else map(json.loads, text.splitlines())
    found = [row.get("answers", row.get("answer")) for row in rows]
    return [[gold] if isinstance(gold, str) else list(gold) for gold in found]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--instructions", type=int, default=2000)
    parser.add_argument("--gold", type=Path, nargs="*", default=[])
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    texts = harmless(options.instructions, options.seed)
    lists = {"built in": [[gold] for gold in GOLD]}
    lists |= {path.name: read_answers(path) for path in options.gold}
    for name, answers in lists.items():
        for shown in (4, 800):
            share = false_positives(texts, answers, shown, options.seed)
            print(f"{name}: {share:.2%} of {len(texts)} rejected, {shown} questions shown")
    found = detected()
    print(f"leaks found: {sum(found)} of {len(found)}")
    for (gold, sentence), hit in zip(LEAKS, found, strict=True):
        if not hit:
            print(f"  missed {gold!r} in {sentence!r}")


if __name__ == "__main__":
    main()
