"""The requests that the bundled policy of `ladder` is trained to follow.

None of these sentences stands in `bank.txt` or is one of the offline rules'; a test holds them apart.
"""

from cotune.worlds.ladder import WRITTEN, Way
from recipes.requests import Grammar

_SMALL = "{the small numbers|the later numbers|the little numbers|the numbers after the first|what is added|two or three numbers|several numbers}"
_EACH = "{each number|every number|each of them|each small number|every single number}"
_THEM = "{the numbers|the small numbers|all numbers|them}"
_SIGNS = "{plus and minus|the signs|all signs|additions and subtractions|gains and losses}"
_MINUS = "{what is taken away|each subtraction|every minus|a minus|the losses}"

VERBS: dict[Way, tuple[str, ...]] = {
    Way.TOGETHER: (
        f"{{add|sum|combine|join|put|take|bundle}} {_SMALL} {{together|in groups|into one|first}}",
        f"{{group|bundle|combine|merge}} {_SMALL}",
        f"{{make|form|build}} {{groups|bundles|one sum|a sum}} {{of|from|out of}} {_SMALL}",
        f"{{total|add up|sum up}} {_SMALL} {{first|before the rest|before you go on}}",
        "{work|add|go} {in groups|group by group|in bundles|several at a time|two or three at a time}",
        "{use|write|add} {one sum|a single sum|few lines|one line} for {several numbers|two or three numbers|a group}",
        "{take|add|handle} {several|two or three} numbers at {once|a time}",
        f"{{collect|gather}} {_SMALL} {{first|into a group|into one sum}}",
    ),
    Way.ONE_BY_ONE: (
        f"{{add|take|handle|treat}} {_THEM} {{one by one|one at a time|singly|one after another|in turn}}",
        f"{{add|take|handle|treat}} {_EACH} {{alone|by itself|on its own|in turn|separately}}",
        f"{{write|use|make}} {{a line|one line|its own line|a step|its own step}} for {_EACH}",
        f"give {_EACH} {{a line|its own line|a step|its own step}}",
        "{work|go|add} {number by number|one by one|line by line|from number to number|one number at a time}",
        "{keep|leave} {the numbers|the small numbers|them} {apart|separate|single}",
        f"{{write down|note|show}} {{the result|the sum|a sum}} after {_EACH}",
        f"{{step|walk}} through {_THEM} {{one by one|singly|in turn}}",
    ),
    Way.IN_ORDER: (
        "{keep|follow|respect|hold} {the order|the given order|the written order|the order of the problem|the order of the signs}",
        "{work|go|read|move|count} {from left to right|from the left|in order|in the given order|from the first sign to the last}",
        f"{{take|do|handle|treat}} {_SIGNS} {{in order|as they come|as they stand|from left to right}}",
        "{add and subtract|add and take away|go up and down} {as you read|as written|in order|from left to right}",
        f"{{take|do|handle|subtract}} {_MINUS} {{at its place|as it comes|where it stands|in the given order}}",
        f"{{mix|alternate}} {_SIGNS} {{as the problem does|as they stand|as written}}",
        "{stay with|stick to|go by|obey} {the order|the written order|the order of the text|the sequence}",
        "{start|begin} {at the left|on the left|with the left} and {go|move|work} {to the right|right}",
    ),
    Way.AT_ONCE: (
        "{answer|reply} {at once|directly|immediately|straight away|without any steps}",
        "{give|write|say} {only the answer|the answer alone|the result alone|nothing but the result}",
        "{skip|leave out|drop} {the steps|the lines|all work|the working}",
        "{guess|do it in your head|say the first number that comes}",
    ),
}
NOUNS: dict[Way, tuple[str, ...]] = {
    Way.TOGETHER: (
        "{groups|bundles|sums} {of|from} {several numbers|two or three numbers|the small numbers}",
        "{one sum|a single sum|one line} for {several numbers|two or three numbers|a group}",
        "{groups|bundles|few lines|a sum of groups|numbers in groups}",
    ),
    Way.ONE_BY_ONE: (
        "{a line|one line|its own line|a step} for {each number|every number|every single number}",
        "{single numbers|single lines|single steps|many lines|separate steps}",
        "{one number|a number} {at a time|in each line|per line}",
    ),
    Way.IN_ORDER: (
        "{the order|the given order|the written order} of {the signs|the problem|the text|plus and minus}",
        "{the order from left to right|the way from left to right|a walk from left to right|the given sequence|the written sequence}",
        "{plus and minus|the signs|gains and losses} {in order|as they come|in the given order|in sequence}",
    ),
    Way.AT_ONCE: (
        "{the answer|the result} {alone|at once|without steps}",
        "{no lines|no steps|no work}",
    ),
}
"""Noun phrases for the same ways."""
NEUTRAL = (
    "You are a {helpful|careful|kind|patient} {assistant|teacher|clerk|pupil}.",
    "Be {precise|careful|clear|polite|brief|friendly|patient}.",
    "{This|It} is {important|a test|an exam|homework|an easy one|for your friends}.",
    "{Read|Check|Look at} the {problem|question|numbers|answer} {carefully|with care|twice|again}.",
    "{Think|Take your time|Do your best|Be quick|Stay calm}.",
    "The {answer|result} is {a whole number|a number|one number|never a word}.",
    "{Mathematics|Arithmetic} is {fun|easy|your subject|for everybody}.",
    "{Many people|Your friends|The others|Some pupils} {like|need|ask for|love} {sums|problems|answers|numbers|groups of friends}.",
    "Put {only one number|one number} in the box.",
    "{All numbers|The numbers|The small numbers|The first number and the others} are {small|whole|given in the problem|easy to read}.",
    "{Somebody|A teacher|A friend} {wrote|needs|reads} {this|the problem|the numbers}.",
    "There {are several numbers|is one number after another|is a first number} in {the problem|every problem}.",
    "{You can do this|This is easy|It is about numbers|Nothing else is needed}.",
)
GRAMMAR = Grammar(VERBS, NOUNS, NEUTRAL, WRITTEN, Way.AT_ONCE)
