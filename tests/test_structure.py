"""The house rules that a machine can check."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FILES = sorted(path for folder in ("sage_trl", "examples", "tests") for path in (ROOT / folder).rglob("*.py"))
# Names of TRL's insides, which only trainer.py may spell
INTERNALS = re.compile(
    r"_compute_loss|_get_per_token_logps_and_entropies|_generate_and_score_completions|_calculate_rewards"
    r"|ref_per_token_logps|\b_metrics\b|trl\.trainer|trl\.models|GRPOTrainer\b(?<!SAGEGRPOTrainer)"
)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_file_stays_readable(path):
    assert len(path.read_text().splitlines()) <= 400


def test_only_trainer_knows_trl_s_internals():
    found = {
        str(path.relative_to(ROOT))
        for path in (ROOT / "sage_trl").rglob("*.py")
        if any(INTERNALS.search(line) for line in path.read_text().replace("[`~trl.GRPOTrainer`]", "").splitlines())
    }
    assert found == {"sage_trl/trainer.py"}


@pytest.mark.parametrize("path", sorted((ROOT / "sage_trl" / "guides").glob("*.py")), ids=lambda path: path.name)
def test_a_guide_s_code_fits_on_a_page(path):
    for body in re.split(r"^class ", path.read_text(), flags=re.M)[1:]:
        code = re.sub(r'"""[\s\S]*?"""', "", body.split("\n\n\n")[0])
        assert len([line for line in code.splitlines() if line.strip()]) <= 60
