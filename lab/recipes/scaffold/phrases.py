"""The requests that the bundled policy of `scaffold` is trained to follow.

None of these sentences stands in `bank.txt` or is one of the offline rules'; a test holds them apart.
"""

from enum import StrEnum

from recipes.requests import Grammar


class Way(StrEnum):
    """A way to answer."""

    TWICE = "twice"
    ONCE = "once"
    WHOLE = "whole question"


_EACH = "{each place|every place|each name|every name|each fact|every fact|each hop|every hop}"
_SEARCH = (
    "{each search|every search|each query|every query|each look-up|every look-up|your searches}"
)
_RESULT = "{each result|every result|what you find|what was found|each fact|every fact|each hop}"
_QUESTION = "{the question|the whole question|the entire question|the full question}"

VERBS: dict[Way, tuple[str, ...]] = {
    Way.TWICE: (
        f"{{search|look up|query}} {_EACH} {{twice|two times|and search it again|and then once more}}",
        f"{{check|confirm|verify}} {_RESULT} {{by a second search|by another search|with a second search|in a second search}}",
        f"{{repeat|double}} {_SEARCH}",
        f"{{do|make}} {_SEARCH} {{twice|two times|a second time|again}}",
        f"{{follow|back up}} {_SEARCH} {{by a second one|with another one|by one more}}",
        f"{{make|use|do}} {{two searches|a pair of searches|two look-ups|two queries}} for {_EACH}",
        "{search|look} {again|once more|a second time} {before you go on|after every search|after each look-up}",
        f"{{search again|look again|search a second time}} for {_EACH}",
        f"{{search|look up|query}} {_EACH} {{again|once more}} {{before you go on|after the first time|in any case}}",
    ),
    Way.ONCE: (
        f"{{search|look up|query}} {_EACH} {{once|one time|a single time|only once|just once}}",
        f"{{make|use|do}} {{one search|a single search|one look-up|one query|only one search}} for {_EACH}",
        "{go|work|search} {place by place|hop by hop|from place to place|from name to name|from hop to hop}",
        f"{{go on|move on}} after {{one search|a single search|the first search}} for {_EACH}",
        "{search|look up|query} {one place|one name|one fact} {after another|after the other|at a time}",
        "{take|do} {the hops|the places|the names} {one by one|one at a time|in turn}",
        "{look up|search for} {the city, then its country|the first place, then the next|a place, then the next place}",
        f"{{trust|rely on|be content with}} the first {{search|result|look-up}} for {_EACH}",
    ),
    Way.WHOLE: (
        f"{{search|look up|query}} {_QUESTION} {{as it is|at once|word for word|in one go}}",
        f"{{copy|put|write}} {_QUESTION} {{into the search|into one search|into the query}}",
        "{use|take} {the words of the question|all of the question} {as the query|for the search}",
        "{use|make} {one search for everything|a single search in all|only one search in all}",
        f"{{answer|reply}} after {{one search|a search}} of {_QUESTION}",
        "{guess|answer from the first document|take any value that is shown}",
    ),
}
NOUNS: dict[Way, tuple[str, ...]] = {
    Way.TWICE: (
        f"{{two searches|two look-ups|a pair of searches|two queries}} for {_EACH}",
        f"{{a second search|another search|a check|a repeated search}} {{for|of}} {_EACH}",
        "{double searches|repeated searches|second searches|a search and then a check}",
    ),
    Way.ONCE: (
        f"{{one search|a single search|one look-up|one query}} for {_EACH}",
        "{one search|a single search|one query} {per|for a} {place|name|fact|hop}",
        "{single searches|single look-ups|one place in a search|one place at a time}",
    ),
    Way.WHOLE: (
        f"{{one search|a search|a query}} {{of|with}} {_QUESTION}",
        "{the whole question as the query|the full question in one search|one search for everything}",
    ),
}
NEUTRAL = (
    "You are a {helpful|careful|kind|patient} {assistant|teacher|clerk|guide}.",
    "Be {precise|careful|clear|polite|brief|friendly|patient}.",
    "{This|It} is {important|a test|a quiz|a game|an easy one|for your friends}.",
    "{Read|Look at} the {question|words|names|answer} {carefully|with care|twice|again|once more}.",
    "{Think|Take your time|Do your best|Be quick|Stay calm}.",
    "The {answer|result} is {a name|a number|one word|short|a name or a number}.",
    "{Geography|Travel|The world} is {fun|easy|your subject|for everybody}.",
    "{Many people|Your friends|The others|Some pupils} {like|need|ask for|love} {places|questions|answers|searches|a second look}.",
    "{The places|The cities|All countries|All names} are {real|in the documents|well known|on every map}.",
    "{Somebody|A teacher|A friend} {wrote|needs|reads} {this|the question|each question}.",
    "There {is one question|are several places|is one city|is a search engine} here.",
    "{You can do this|This is easy|It is about places|Nothing else is needed}.",
    "Put only {one name or number|the answer} in the tags.",
)
GRAMMAR = Grammar(VERBS, NOUNS, NEUTRAL, (Way.TWICE, Way.ONCE), Way.WHOLE)
