import subprocess
import sys

import pytest

import sage_trl
from sage_trl.cli import main

HEAVY = ("torch", "trl", "transformers", "datasets", "numpy")


@pytest.mark.parametrize("argument", ["--help", "--version"])
def test_help_and_version_load_nothing_heavy(argument):
    code = (
        "import sys\nfrom sage_trl.cli import main\n"
        f"try:\n    main([{argument!r}])\n"
        f"except SystemExit as end:\n    assert end.code == 0\n    print([m for m in {HEAVY} if m in sys.modules])"
    )
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert output.splitlines()[-1] == "[]"


def test_version_is_that_of_the_package(capsys):
    with pytest.raises(SystemExit):
        main(["--version"])
    assert capsys.readouterr().out == f"sage-trl {sage_trl.__version__}\n"


def test_an_unknown_command_is_refused(capsys):
    with pytest.raises(SystemExit) as end:
        main(["trian"])
    assert end.value.code == 2
    assert "invalid choice: 'trian'" in capsys.readouterr().err


def test_train_passes_its_arguments_on(capsys):
    with pytest.raises(SystemExit) as end:
        main(["train", "--config", "no/such.yaml"])
    assert end.value.code == 2
    assert "there is no such file" in capsys.readouterr().err


def test_train_help_lists_the_settings(capsys):
    with pytest.raises(SystemExit) as end:
        main(["train", "--help"])
    assert end.value.code == 0
    output = capsys.readouterr().out
    assert output.startswith("usage: sage-trl train --config recipe.yaml")
    assert all(setting in output for setting in ("--task", "--guide_kwargs", "--learning_rate", "--lora_r"))
