import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from benchmarks.guides import MIB, built_in, peak_memory
from sage_trl.guides import GUIDES

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


def test_peak_memory_sees_what_is_freed_again():
    def work():
        for _ in range(3):
            torch.ones(64 * MIB, dtype=torch.uint8)

    assert peak_memory(work) / MIB == pytest.approx(64, abs=4)
    assert peak_memory(lambda: None) < MIB


def test_every_built_in_guide_is_measured():
    assert GUIDES.items() <= {name: type(guide) for name, guide in built_in().items()}.items()


MEASURE = """
import json
from benchmarks.guides import measure
from sage_trl.guides import NoveltyGuide, TokenGuide
sizes = ((TokenGuide(), 32, 16384), (NoveltyGuide(), 16, 4096))
peaks = [[measure(guide, rows, times * tokens, 8, 3)[1] for times in (1, 4)] for guide, rows, tokens in sizes]
print(json.dumps(peaks))
"""


def test_memory_grows_with_the_tokens_no_faster():
    # In a process of its own, which gives back at once what is freed: what another test left is no room to grow into
    more = {
        "PYTHONPATH": str(Path(__file__).parents[2]),
        "MALLOC_TRIM_THRESHOLD_": "0",
        "MALLOC_MMAP_THRESHOLD_": "65536",
    }
    command = [sys.executable, "-c", MEASURE]
    done = subprocess.run(command, env=os.environ | more, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    for short, long in json.loads(done.stdout):
        assert long == pytest.approx(4 * short, rel=0.2)
