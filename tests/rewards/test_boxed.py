import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotune.errors import ConfigError
from cotune.rewards import boxed
from cotune.rewards.boxed import BoxedReward, last_boxed

ENDLESS = "9^{9^{9^{9}}}"
WORKER = Path(boxed.__file__)
STAND_IN = r"""
import random
import time
from fractions import Fraction
LatexExtractionConfig = dict
def parse(text, *_, **__):
    text = text.removeprefix("\\boxed{").removesuffix("}")
    if text == "9^{9^{9^{9}}}":
        9 ** 9 ** 9 ** 9
    if len(text) > 500:
        time.sleep(0.5)
    if "x" in text:
        return [text]
    return [sum(map(Fraction, text.replace("\\frac12", "1/2").split("+")))]
def verify(gold, answer, **_):
    return gold == answer
"""
"""In place of math_verify, in workers that are only started, ended and killed: it loads at once."""


@pytest.fixture(scope="module")
def reward() -> BoxedReward:
    """One worker for all; generous, as it is time-limited nowhere but where a test says so."""
    return BoxedReward(30.0)


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "math_verify.py").write_text(STAND_IN)
    paths = [str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))


@pytest.fixture
def no_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a worker was started")

    monkeypatch.setattr(boxed.subprocess, "Popen", refuse)


@pytest.mark.parametrize(
    ("text", "content"),
    [
        (r"The answer is \boxed{42}.", "42"),
        (r"\boxed{\frac{1}{\sqrt{2}}}", r"\frac{1}{\sqrt{2}}"),
        (r"\boxed {x} is the same as \boxed" + "\n{ y }", " y "),
        (r"\boxed{\boxed{5}}", "5"),
        (r"\boxed{\left\{1, 2\right.}", r"\left\{1, 2\right."),
        ("42", None),
        (r"\boxed{5", None),
        (r"\boxed{5\}", None),
        # The last one that is begun decides.
        (r"\boxed{5} or \boxed{6", None),
        (r"\boxed{5} as \boxed says", "5"),
        # Neighbours belong together.
        (r"\boxed{2}, \boxed{3}, \boxed{5}", "2, 3, 5"),
        (r"So \boxed{2}, \boxed{3}.", "2, 3"),
        (r"x is \boxed{2} or, in the second of the two cases, \boxed{3}", "2, 3"),
        (r"\boxed{1} First, " + "or " * 30 + r"\boxed{2}", "2"),
        (r"\boxed{7}, that is to say \boxed{7}", "7"),
        (r"\boxed{1, \boxed{2}, \boxed{3}", "2, 3"),
    ],
)
def test_the_last_box(text: str, content: str | None):
    assert last_boxed(text) == content


NEST = st.recursive(
    st.text(alphabet="ab1\\{}", max_size=4)
    .map(lambda s: s.replace("\\", "\\\\"))
    # Braces of plain text are escaped, so that only the nests below open any.
    .map(lambda s: s.replace("{", "\\{").replace("}", "\\}")),
    lambda inner: st.lists(inner, max_size=3).map(lambda parts: "{" + "".join(parts) + "}"),
    max_leaves=12,
)


@given(st.text(), NEST, st.text(alphabet=st.characters(exclude_characters="\\")))
def test_any_balanced_content_is_read_back(before: str, content: str, after: str):
    assert last_boxed(f"{before} \\boxed{{{content}}}{after}") == content


@given(st.text(alphabet="\\boxed{} 1"))
def test_any_text_has_a_last_box_or_none(text: str):
    content = last_boxed(text)
    assert content is None or f"{{{content}}}" in text


def test_deep_and_many_boxes_are_read_in_linear_time():
    """A quadratic parser needs minutes, more than a test may take."""
    deep = "{" * 100_000 + "}" * 100_000
    assert last_boxed("\\boxed{" + deep + "}") == deep
    many = "".join(f"\\boxed{{{i}}}" for i in range(30_000))
    assert last_boxed(many) == ", ".join(map(str, range(30_000)))


@pytest.mark.parametrize(
    ("answer", "truths", "expected"),
    [
        ("156", ["156"], 1.0),
        ("1,234,567", ["1234567"], 1.0),
        ("+007", ["7"], 1.0),
        ("9" * 900, ["8" * 900, "1"], 0.0),
        ("no solution", ["No solution", "no solution."], 1.0),
        ("$ 17 $", [r"17\quad"], 1.0),
        ("90°", [r"90^{\degree}"], 1.0),
        (None, ["1"], 0.0),
        ("1/2", [], 0.0),
        ("1/2", ["x" * 1001], 0.0),
    ],
)
@pytest.mark.usefixtures("no_worker")
def test_equal_texts_and_integers_start_no_worker(
    answer: str | None, truths: list[str], expected: float
):
    assert BoxedReward()(answer, truths) == expected


@pytest.mark.usefixtures("no_worker")
def test_long_answers_are_not_read_and_integers_alone_if_asked_for() -> None:
    assert BoxedReward()("1+" * 600, ["5"]) == 0.0
    nest = "{" * 100_000 + "5" + "}" * 100_000
    assert BoxedReward().score([(nest, ["5"]), ("5", ["5"])]) == [0.0, 1.0]
    # Only plain integers.
    strict = BoxedReward(plain_integers=True)
    pairs = [("12 \\times 13", ["156"]), ("156.0", ["156"]), ("156", ["156"]), ("1,56", ["156"])]
    assert strict.score(pairs) == [0.0, 0.0, 1.0, 0.0]


def test_equality_as_mathematics(reward: BoxedReward):
    equal = [
        (r"\frac12", "0.5"),
        ("0.333333", r"\frac13"),
        ("x^2+2x+1", "(x+1)^2"),
        (r"\$1{,}000", "1000"),
        (r"50\%", "0.5"),
        # Powers of ten as programs write them, on either side.
        ("4.5e33", r"4.5 \times 10^{33}"),
        ("45*10^32", "4.5e33"),
        ("-0.00002", "-2e-05"),
        ("(1e5, 2)", "(100000, 2)"),
        ("0.0000001", "10^{-7}"),
        (r"0.0000025", r"\frac{1}{400000}"),
        (r"\approx 0.5", r"$\frac12$."),
        (r"90^\circ", r"90\,\degree"),
        ("2, 1", r"\{1, 2\}"),
        (r"\text{(A)}", "A"),
        # What plain_integers is for.
        (r"12 \times 13", "156"),
    ]
    unequal = [
        (r"\frac12", "0.25"), ("5.0001", "5"), ("5, 6", "5"), ("5", "2, 3, 5"), ("2345", "2, 345"),
        ("x+1", "y+1"), ("hello 5 @@", "5"), (r"\text{The answer is } 5", "5"),
        (r"5 \text{ or } 6", "5"), ("6.02e23", "6.022e23"), ("1e-7", "2e-7"), ("0.0000001", "0"),
        (r"\frac{1}{2^{99}}", r"\frac{1}{2^{98}}"), ("1e33", "1e34"), ("e3", "1000"),
        (r"\frac{1}{0}", "5"), (r"\frac{", "5"), ("?", "5"),
        ("\ud800\x00\n", "5"),
    ]  # fmt: skip
    scores = reward.score([(answer, [truth]) for answer, truth in equal + unequal])
    assert scores == [1.0] * len(equal) + [0.0] * len(unequal)
    assert reward("1/2", ["7", "x", "0.5"]) == 1.0


def test_threads_take_turns(reward: BoxedReward):
    def ask(n: int) -> list[float]:
        return reward.score([(f"{n}/2", [f"{n / 2}"]), ("1/3", ["7"])])

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(ask, range(1, 9, 2))) == [[1.0, 0.0]] * 4


@pytest.mark.usefixtures("stand_in")
def test_a_late_answer_scores_zero_and_the_rest_is_done_anew():
    impatient = BoxedReward(0.6)
    scores = impatient.score([("1/2", ["0.5"]), (ENDLESS, ["5"]), ("1/4", ["0.25"])])
    assert scores == [1.0, 0.0, 1.0]


@pytest.mark.usefixtures("stand_in")
def test_large_batches_have_several_workers(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(boxed.os, "cpu_count", lambda: 3)
    reward = BoxedReward(30.0)
    pairs = [(f"{i}/2", [str(i / 2 + i % 2)]) for i in range(1, 81)]
    assert reward.score(pairs) == [float(i % 2 == 0) for i in range(1, 81)]
    assert len(reward._idle) == 3


def worker_pid(reward: BoxedReward) -> int:
    return reward._idle[0]._process.pid


@pytest.mark.usefixtures("stand_in")
def test_a_worker_is_kept_and_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reward = BoxedReward(30.0)
    assert reward._idle == []
    assert reward("1/2", ["0.5"]) == 1.0
    first = worker_pid(reward)
    assert reward("1/2", ["0.25"]) == 0.0
    assert worker_pid(reward) == first
    os.kill(first, signal.SIGKILL)
    os.waitid(os.P_PID, first, os.WEXITED | os.WNOWAIT)
    assert reward("1/2", ["0.5"]) == 1.0
    assert worker_pid(reward) != first
    # Plain integers leave other ground truths to it.
    strict = BoxedReward(30.0, plain_integers=True)
    assert strict(r"\frac12", ["0", "0.5"]) == 1.0
    # A folder of the user's shadows nothing.
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "random.py").write_text("raise ImportError('not the real one')")
    monkeypatch.chdir(tmp_path / "own")
    assert BoxedReward(30.0)("1/2", ["0.5"]) == 1.0


@pytest.mark.usefixtures("stand_in")
class Interrupted(BaseException):
    """Raised at a signal, as KeyboardInterrupt is."""


def test_an_interrupt_leaves_no_stale_reply():
    def interrupt(*_: object) -> None:
        raise Interrupted

    # Not SIGINT, which a run in the background may ignore.
    previous = signal.signal(signal.SIGALRM, interrupt)
    try:
        reward = BoxedReward(30.0)
        assert reward("1/2", ["0.5"]) == 1.0
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        with pytest.raises(Interrupted):
            # Takes half a second; its reply would be taken for that to the next question.
            reward("+".join("1" * 400), ["400"])
        assert reward.score([("1/2", ["0.25"]), ("1/2", ["0.5"])]) == [0.0, 1.0]
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)


def ends_within(pid: int, seconds: float) -> bool:
    """Whether the process, nobody's child any more, ends within these seconds."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return True
        if state == "Z":  # in a container, nobody may reap it
            return True
        time.sleep(0.05)
    return False


PARENT = """
import os, signal, sys, threading
from cotune.rewards.boxed import BoxedReward
reward = BoxedReward(1.0)
assert reward("1/2", ["0.5"]) == 1.0
print(reward._idle[0]._process.pid, flush=True)
if sys.argv[1] == "busy":
    threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGKILL)).start()
    reward("9^{9^{9^{9}}}", ["5"])
"""


@pytest.mark.usefixtures("stand_in")
@pytest.mark.parametrize("way", ["ends", "busy"])
def test_a_worker_does_not_outlive_its_parent(way: str):
    result = subprocess.run(
        [sys.executable, "-c", PARENT, way], stdout=subprocess.PIPE, text=True, timeout=60
    )
    assert result.returncode == (0 if way == "ends" else -signal.SIGKILL)
    # One that computes is ended by its own alarm, 2.5 s after the question.
    assert ends_within(int(result.stdout), 10.0)


def test_what_math_verify_may_do_when_it_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A missing library is a set-up error.
    (tmp_path / "math_verify.py").write_text("raise ImportError('no antlr here')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(ConfigError, match=r"did not start: ImportError: no antlr here; check that"):
        BoxedReward()("1/2", ["0.5"])
    # What libraries print is no reply.
    (tmp_path / "math_verify.py").write_text(
        "print('{\"ready\": true}')\n"
        "LatexExtractionConfig = dict\n"
        "def parse(text, *_, **__): print('{\"equal\": true}'); return [text]\n"
        "def verify(gold, answer, **_): return gold == answer\n"
    )
    assert BoxedReward(30.0).score([("a", ["b"]), ("c", ["d"])]) == [0.0, 0.0]


def test_memory_is_capped():
    code = (
        f"import sys; sys.path.insert(0, {str(WORKER.parent)!r})\n"
        "import boxed; boxed.limit_memory()\n"
        "try: bytearray(2 * boxed.MEMORY_BYTES)\n"
        "except MemoryError: print('capped')"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.stdout.strip() == "capped", result.stderr
