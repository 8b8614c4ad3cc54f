import sys

import pytest
import torch

from benchmarks.guides import MIB, built_in, measure, peak_memory
from sage_trl.guides import GUIDES, NoveltyGuide, TokenGuide

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


def test_peak_memory_sees_what_is_freed_again():
    def work():
        for _ in range(3):
            torch.ones(64 * MIB, dtype=torch.uint8)

    assert peak_memory(work) / MIB == pytest.approx(64, abs=4)
    assert peak_memory(lambda: None) < MIB


def test_every_built_in_guide_is_measured():
    assert GUIDES.items() <= {name: type(guide) for name, guide in built_in().items()}.items()


@pytest.mark.parametrize("guide", [TokenGuide(), NoveltyGuide()], ids=lambda guide: type(guide).__name__)
def test_memory_grows_with_the_tokens_no_faster(guide):
    (_, short), (took, long) = (measure(guide, 16, tokens, 8, repeats=1) for tokens in (4096, 16384))
    assert took > 0 and long == pytest.approx(4 * short, rel=0.4)
