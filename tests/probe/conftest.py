import pytest
from support.stub_drivers import StubDrivers


@pytest.fixture(scope="session")
def stubs(tmp_path_factory: pytest.TempPathFactory) -> StubDrivers:
    return StubDrivers(tmp_path_factory.mktemp("drivers"))
