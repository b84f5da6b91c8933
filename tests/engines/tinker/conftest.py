"""The tests of this engine need the SDK, `tinker`, which the extra `tinker` installs."""

import pytest

from cotune.engines.tinker.server_policy import Adapter
from cotune.utils.packages import installed
from tests.engines.tinker.fake_server import FakeServer
from tests.engines.tinker.setup import adapter_of, letters_policy

if installed("tinker") is None:
    collect_ignore = ["test_losses.py", "test_runs.py", "test_service.py"]


@pytest.fixture(scope="session")
def policy(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The folder of an untrained policy of the tests' letters."""
    return letters_policy(tmp_path_factory.mktemp("policy") / "letters")


@pytest.fixture
def server(policy: str, monkeypatch: pytest.MonkeyPatch) -> FakeServer:
    """A server of that policy, which answers instead of any other."""
    return FakeServer(policy).install(monkeypatch)


@pytest.fixture
def adapter(server: FakeServer) -> Adapter:
    """A new adapter on it."""
    return adapter_of(server)
