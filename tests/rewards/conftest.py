import pytest

from sage_trl.rewards.pool import Pool, set_shared_pool


@pytest.fixture
def impatient_pool():
    """The shared pool with a limit of a second, so that tests of the limit are short."""
    pool = Pool(workers=2, timeout=1.0)
    set_shared_pool(pool)
    yield pool
    set_shared_pool(Pool())
