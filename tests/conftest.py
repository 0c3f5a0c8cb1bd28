"""Settings shared by all tests: reproducible property tests, one thread, no progress bars, no display."""

import os
import signal

import pytest
from hypothesis import settings

for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(name, "1")
os.environ.setdefault("MPLBACKEND", "agg")
os.environ.setdefault("RL_OODKIT_PROGRESS", "0")

# Started in the background, a process inherits that Ctrl-C is ignored, and hands it on to the processes it starts.
signal.signal(signal.SIGINT, signal.default_int_handler)

settings.register_profile("house", derandomize=True, deadline=None, database=None)
settings.load_profile("house")

# A sandbox's steps run as a user of their own whose processes are counted: two sandboxes at once would count together.
SANDBOXES = (
    "fault/test_mle_*",
    "contract/test_mle_code_env.py",
    "contract/test_mle_commands.py",
    "contract/test_mle_react.py",
    "contract/test_reproduce_mle*",
)


def pytest_collection_modifyitems(items):
    """Keep the tests of a file in one process when there are several, and all that start sandboxes."""
    for item in items:
        shared = any(item.path.match(pattern) for pattern in SANDBOXES)
        item.add_marker(pytest.mark.xdist_group("sandboxes" if shared else str(item.path)))
