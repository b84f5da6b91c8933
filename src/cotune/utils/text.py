"""Text that is safe for a terminal, suggestions for names, sizes in bytes, and dotted names."""

import difflib
import re
import shlex
import sys
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

_PACKAGE = Path(__file__).parents[1]

# C0 and C1 controls (ESC and CSI begin sequences that a terminal acts on), marks that turn the
# direction of a line, and lone surrogates, which no terminal can be sent.
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def printable(text: str) -> str:
    """Remove control characters from a model's text; line breaks and tabs stay."""
    return _CONTROLS.sub("", text)


def encodable(text: str) -> str:
    """Replace lone surrogates with "?": they are legal in JSON, but have no UTF-8 form."""
    return text.encode("utf-8", "replace").decode()


def one_line(text: str) -> str:
    """Return a model's text on one line, without control characters."""
    return " ".join(printable(" ".join(text.split())).split())


def named(error: BaseException, limit: int = 200) -> str:
    """Return an error's class and message on one line of at most `limit` characters."""
    return one_line(f"{type(error).__name__}: {message_of(error)}")[:limit]


def message_of(error: BaseException) -> str:
    """Return an error's message; "" if its own code raises instead."""
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - user code
        return ""


def line_of(error: BaseException) -> str:
    """Return " (FILE, line N)" for the user's last line that led to an error; "" if there is none.

    Lines of cotune's, of Python's own modules and of installed packages are left out.
    """
    others = (sys.prefix, sys.base_prefix, str(_PACKAGE), "<frozen")
    frames = traceback.extract_tb(error.__traceback__)
    lines = [f for f in frames if not f.filename.startswith(others)]
    return f" ({Path(lines[-1].filename).name}, line {lines[-1].lineno})" if lines else ""


# Without the first look a long word would be searched from each of its letters.
_CREDENTIALS = re.compile(r"(?<![A-Za-z0-9+.-])([A-Za-z0-9+.-]+://)[^\s/@'\"]+@")
# Keys of OpenAI and others alike, Hugging Face, GitHub, GitLab, Slack, NVIDIA, Groq, Perplexity, AWS,
# Google, and JSON web tokens.
_KEY = re.compile(
    r"\b(?:sk-(?:proj|ant|or|svcacct|admin)-[\w-]{6,}|sk-[A-Za-z0-9]{20,}"
    r"|hf_[A-Za-z0-9]{20,}|gh[opsu]_[A-Za-z0-9]{20,}|github_pat_\w{20,}|glpat-[\w-]{20,}"
    r"|xox[abps]-[\w-]{10,}|nvapi-[\w-]{20,}|gsk_[A-Za-z0-9]{20,}|pplx-[A-Za-z0-9]{20,}"
    r"|AKIA[A-Z0-9]{16}|AIza[\w-]{30,}|eyJ[\w-]{10,}\.[\w.-]+)"
)
_LONG = re.compile(r"[A-Za-z0-9+=]{20,}")
_RUNS = re.compile(r"[A-Z]+|[a-z]+|[0-9]+")


def has_secret(text: str) -> bool:
    """Return whether a text holds a URL with a user or password, or a key of a well-known form."""
    return bool(_CREDENTIALS.search(text) or _KEY.search(text))


def looks_random(word: str) -> bool:
    """Return whether a word of 20 characters or more mixes cases and digits as keys do.

    A run of one kind is 1.7 characters long on average if they are drawn evenly, and more than three
    in words written as OneWord2024.
    """
    runs = _RUNS.findall(word)
    return len(word) >= 20 and len(word) < 2.5 * len(runs)


def hide_secrets(text: str, guess: bool = False) -> str:
    """Replace keys, and users and passwords in URLs, with ***.

    Args:
        guess: also replace long words that look random, such as a key of an unknown form; for values, not for paths.

    >>> hide_secrets("no model at https://me:secret@host/x")
    'no model at https://***@host/x'
    """
    hidden = _KEY.sub("***", _CREDENTIALS.sub(r"\1***@", text))
    if not guess:
        return hidden
    return _LONG.sub(lambda found: "***" if looks_random(found[0]) else found[0], hidden)


def command_on(folder: str | Path, command: str, options: str = "") -> str:
    """Return a command for a run folder, to be copied into a shell.

    >>> command_on("runs/my run", "resume")
    "cotune resume 'runs/my run'"
    """
    return " ".join(filter(None, ("cotune", command, shlex.quote(str(folder)), options)))


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """Return " (did you mean NAME?)" for a misspelt name; "" if no known name is close."""
    near = difflib.get_close_matches(name, list(names), n=1)
    return f" (did you mean {near[0]}?)" if near else ""


_THOUGHT = re.compile(r"<think>.*?(?:</think>|\Z)", re.DOTALL)


def split_thoughts(text: str) -> tuple[str, str]:
    """Split a model's text into its thoughts, with all before the end of the last one, and its answer.

    A thought is what stands in <think>, which a chat template may have opened before the text. One that is
    never closed extends to the end.

    >>> split_thoughts("the template opened it</think> Paris")
    ('the template opened it</think>', ' Paris')
    """
    before, end, answer = _THOUGHT.sub("", text).rpartition("</think>")
    return before + end + "".join(_THOUGHT.findall(text)), answer


def without_thoughts(text: str) -> str:
    """Return a model's text without its thoughts in <think>; see `split_thoughts`."""
    return split_thoughts(text)[1]


def flat(nested: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested mappings as one mapping with dotted names.

    >>> flat({"a.b": {"c": 1}, "d": 2})
    {'a.b.c': 1, 'd': 2}
    """
    flattened: dict[str, Any] = {}
    for name, value in nested.items():
        dotted = f"{prefix}{name}"
        if isinstance(value, Mapping):
            flattened |= flat(cast("Mapping[str, Any]", value), f"{dotted}.")
        else:
            flattened[dotted] = value
    return flattened


def texts_in(value: object) -> Iterator[str]:
    """Yield every text of nested mappings and lists, keys included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for pair in cast("Mapping[str, object]", value).items():
            yield from texts_in(pair)
    elif isinstance(value, Sequence):
        for part in cast("Sequence[object]", value):
            yield from texts_in(part)


def slug(name: str) -> str:
    """Return the folder name for a row's name."""
    return re.sub(r"[^a-z0-9.+]+", "-", name.lower().replace("²", "2")).strip("-.")


def size(count: float) -> str:
    """Return a number of bytes as "12.5 GiB" or "3.4 MiB"."""
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 / 10 else f"{count / 2**20:.1f} MiB"


def shorten(value: Any, limit: int = 80, guess: bool = False) -> str:
    """Return a value's repr on one line of at most `limit` characters, without secrets as by `hide_secrets`."""
    text = hide_secrets(one_line(repr(value)), guess)
    return text if len(text) <= limit else f"{text[: limit - 3]}..."


def shorten_middle(text: str, limit: int) -> str:
    """Shorten a text to about `limit` characters, keeping its beginning and its end."""
    if len(text) <= limit:
        return text
    head = limit // 2
    tail = text[len(text) - (limit - head) :]
    return f"{text[:head]}\n[... {len(text) - limit} characters left out ...]\n{tail}"
