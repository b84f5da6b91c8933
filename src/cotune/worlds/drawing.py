"""Draw questions that differ, and split them by a hash; shared by the generated worlds."""

from collections.abc import Callable, Iterator, Mapping

from cotune.data.splits import sha
from cotune.errors import ConfigError
from cotune.types import Task


def split_by_hash(text: str, shares: Mapping[str, float]) -> str:
    """Return the split of a text, by its hash; `shares` sum to 1, and "test" is one of them."""
    place = int(sha(text)[:16], 16) / 16**16
    for split, share in shares.items():
        if place < share:
            return split
        place -= share
    return "test"


def different(
    draw: Callable[[], Task | None], tries: int, split: str, kind: str, advice: str = ""
) -> Iterator[Task]:
    """Yield tasks whose questions differ, endlessly.

    Args:
        draw: draws a task; None if it is of another split.
        tries: draws of one task before there are no more.
        split, kind, advice: the field, the kind of task and further advice, for the error.

    Raises:
        ConfigError: none of the tries gave a new question.
    """
    questions = set[str]()
    while True:
        draws = (draw() for _ in range(tries))
        new = next((task for task in draws if task and task.question not in questions), None)
        if new is None:
            raise ConfigError(
                f"environment.{split} asks for more than the {len(questions)} {kind} that could be found; "
                f"lower it{advice}"
            )
        questions.add(new.question)
        yield new
