import signal
import threading

import pytest

from cotune.utils.processes import stopped_by_sigterm


def stop_twice(log: list[str]) -> None:
    with stopped_by_sigterm():
        try:
            signal.raise_signal(signal.SIGTERM)
        except KeyboardInterrupt:
            signal.raise_signal(signal.SIGTERM)
            log.append("up")
            raise


def test_sigterm_stops_as_ctrl_c_does_and_a_second_one_lets_the_cleaning_up_end() -> None:
    before = signal.getsignal(signal.SIGTERM)
    log: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        stop_twice(log)
    assert log == ["up"]
    assert signal.getsignal(signal.SIGTERM) == before


def test_a_thread_which_cannot_handle_signals_goes_on_without() -> None:
    log: list[str] = []

    def work() -> None:
        with stopped_by_sigterm():
            log.append("worked")

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert log == ["worked"]
