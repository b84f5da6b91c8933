"""How `src` reads, in six numbers: `python -m tests.readability` prints them, and `--list` where to look.

`--list rollout/` lists only the files whose path holds `rollout/`. Functions are measured without their
docstring, and properties are not functions here. A swap (`a, b = b, a`) is no parallel assignment.
"""

import ast
import io
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]

_EMPTY_WORDS = (
    "anything asked drawn everyone everything found given here its kept known made meant mine most "
    "named one ones ours own rest said seen shown something taken that theirs them there these thing things this "
    "those told wanted what whatever where whole"
)
EMPTY_WORDS = frozenset(_EMPTY_WORDS.split())
"""Words that say nothing of a value. A binding counts that has no other word: `found`, `_own`, `most_asked`."""

_IRREGULAR_PARTICIPLES = (
    "begun bought bound bred broken brought built caught chosen done drawn fed felt found given gone grown heard "
    "held hidden kept known laid led left lent lost made meant met paid said seen sent shown sold spent stood "
    "stuck taken taught thought thrown told understood won written"
)
IRREGULAR_PARTICIPLES = frozenset(_IRREGULAR_PARTICIPLES.split())
_VERBS_IN_ED = "embed exceed feed need proceed seed shed speed succeed"
VERBS_IN_ED = frozenset(_VERBS_IN_ED.split())

LIMITS = {
    "empty names, % of bindings": 0.4,
    "functions named by a participle, %": 3.9,
    "parallel assignments per 1,000 lines": 0.5,
    "docstrings that begin with Return, %": 55.0,
    "longest function, lines": 76,
}
"""The most of each row. They only fall: lower them to what a change leaves."""

LEAST = {"own-line comments per 1,000 lines": 13.5}
"""The least of a row. It only rises."""


class Reading:
    """Counts of some files, and the offenders of each row as `path:line text`."""

    def __init__(self, paths: list[Path]) -> None:
        self.lines = 0
        self.comments = 0
        self.bindings = 0
        self.functions = 0
        self.docstrings = 0
        self.empty_names: list[str] = []
        self.participles: list[str] = []
        self.parallel: list[str] = []
        self.returns: list[str] = []
        self.lengths: list[tuple[int, str]] = []
        for path in paths:
            self._read(path)

    def rows(self) -> dict[str, float]:
        """The table: its rows by name."""
        return {
            "empty names, % of bindings": _percent(self.empty_names, self.bindings),
            "functions named by a participle, %": _percent(self.participles, self.functions),
            "parallel assignments per 1,000 lines": 10 * _percent(self.parallel, self.lines),
            "docstrings that begin with Return, %": _percent(self.returns, self.docstrings),
            "longest function, lines": max(self.lengths)[0],
            "own-line comments per 1,000 lines": 1000 * self.comments / self.lines,
        }

    def _read(self, path: Path) -> None:
        text = path.read_text(encoding="utf-8")
        place = path.relative_to(ROOT).as_posix()
        self.lines += sum(1 for line in text.splitlines() if line.strip())
        self.comments += _own_line_comments(text)
        for node in ast.walk(ast.parse(text)):
            for name, line in _bindings(node):
                self.bindings += 1
                if _is_empty(name):
                    self.empty_names.append(f"{place}:{line} {name}")
            if isinstance(node, ast.Assign) and _is_parallel(node):
                self.parallel.append(f"{place}:{node.lineno} {ast.unparse(node)[:80]}")
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                self._read_function(node, f"{place}:{node.lineno} {node.name}")

    def _read_function(self, node: ast.FunctionDef | ast.AsyncFunctionDef, label: str) -> None:
        docstring = ast.get_docstring(node)
        if not _is_property(node):
            self.functions += 1
            if _is_participle(node.name):
                self.participles.append(label)
        if docstring:
            self.docstrings += 1
            if docstring.startswith("Return"):
                self.returns.append(label)
        body = node.body[1:] if docstring else node.body
        if body:
            self.lengths.append(((body[-1].end_lineno or 0) - body[0].lineno + 1, label))


def read_source() -> Reading:
    """Read all of `src`."""
    return Reading(sorted((ROOT / "src").rglob("*.py")))


def _percent(offenders: list[str], total: int) -> float:
    return 100 * len(offenders) / max(total, 1)


def _bindings(node: ast.AST) -> Iterator[tuple[str, int]]:
    """The names that a node binds: variables, arguments, attributes that are assigned, fields of classes."""
    match node:
        case (
            ast.Name(id=name, ctx=ast.Store())
            | ast.Attribute(attr=name, ctx=ast.Store())
            | ast.arg(arg=name)
        ):
            if name.strip("_") and name not in {"self", "cls"}:
                yield name, node.lineno


def _is_empty(name: str) -> bool:
    return all(word in EMPTY_WORDS for word in name.strip("_").split("_"))


def _is_participle(name: str) -> bool:
    first = name.strip("_").split("_")[0]
    return first in IRREGULAR_PARTICIPLES or (first.endswith("ed") and first not in VERBS_IN_ED)


def _is_parallel(node: ast.Assign) -> bool:
    """Whether it is `a, b = x, y`. A swap of two names (`a, b = b, a`) is not."""
    target, value = node.targets[0], node.value
    if not (isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple)):
        return False
    return {ast.unparse(name) for name in target.elts} != {ast.unparse(name) for name in value.elts}


def _is_property(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return any("property" in ast.unparse(decorator) for decorator in node.decorator_list)


def _own_line_comments(text: str) -> int:
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    return sum(
        token.type == tokenize.COMMENT and token.line.lstrip().startswith("#") for token in tokens
    )


def _print_offenders(reading: Reading, part: str) -> None:
    longest = [f"{label} {length}" for length, label in sorted(reading.lengths, reverse=True)[:10]]
    lists = {
        "empty names": reading.empty_names,
        "participles": reading.participles,
        "parallel assignments": reading.parallel,
        "docstrings that begin with Return": reading.returns,
        "longest functions": longest,
    }
    for title, offenders in lists.items():
        print(f"\n{title}")
        for offender in offenders:
            if part in offender.split(":")[0]:
                print(f"  {offender}")


if __name__ == "__main__":
    source = read_source()
    for row, value in source.rows().items():
        limit = f"at most {LIMITS[row]:g}" if row in LIMITS else f"at least {LEAST[row]:g}"
        print(f"{row:38}{value:8.2f}   {limit}")
    if sys.argv[1:2] == ["--list"]:
        _print_offenders(source, "".join(sys.argv[2:3]))
