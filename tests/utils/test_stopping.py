import signal
import threading

import pytest

from cotune.utils.processes import stopped_by_sigterm


def stopped_twice(cleaned: list[str]) -> None:
    with stopped_by_sigterm():
        try:
            signal.raise_signal(signal.SIGTERM)
        except KeyboardInterrupt:
            signal.raise_signal(signal.SIGTERM)
            cleaned.append("up")
            raise


def test_sigterm_stops_as_ctrl_c_does_and_a_second_one_lets_the_cleaning_up_end() -> None:
    before = signal.getsignal(signal.SIGTERM)
    cleaned: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        stopped_twice(cleaned)
    assert cleaned == ["up"]
    assert signal.getsignal(signal.SIGTERM) == before


def test_a_thread_which_cannot_handle_signals_goes_on_without() -> None:
    ended: list[str] = []

    def work() -> None:
        with stopped_by_sigterm():
            ended.append("worked")

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert ended == ["worked"]
