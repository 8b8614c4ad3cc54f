"""The contract with TRL: what its loss does for a shaped anchor to reach it, checked on its source and in action."""

import ast
import inspect
import textwrap

import torch
import trl
from packaging.specifiers import SpecifierSet

# What the contract and golden tests have passed on; the same stands in setup.cfg. 1.15.0 cannot score on a CPU.
TESTED_TRL = SpecifierSet(">=1.14.2,!=1.15.0,<1.17")


class TRLContractError(RuntimeError):
    """The installed TRL computes its loss in another way than [`SAGEGRPOTrainer`] relies on."""

    def __init__(self, what_moved: str):
        super().__init__(
            f"TRL {trl.__version__} has moved what SAGE builds on: {what_moved} Install "
            f"'trl{TESTED_TRL}', the versions that the contract test has passed on."
        )


class LossInputs(dict):
    """
    The shallow copy of a micro-batch that TRL's loss gets. The shaped anchor is written into it, and it notices a TRL
    that reads the reference before that, or not at all.

    Args:
        inputs (`dict`):
            The micro-batch.
        key (`str`):
            Key of the reference's log-probabilities.
        forward (`str`):
            Method that TRL's loss gets the policy's log-probabilities from.
    """

    def __init__(self, inputs: dict, key: str, forward: str):
        if key not in inputs:
            raise TRLContractError(f"a batch no longer has the key '{key}' although `beta` is not 0.")
        super().__init__(inputs)
        self.key, self.forward = key, forward
        self.reference: torch.Tensor = inputs[key]
        self.statistics: torch.Tensor | None = None
        self.was_read = False

    def __getitem__(self, key):
        if key == self.key:
            if self.statistics is None:
                raise TRLContractError(f"its loss reads `inputs['{self.key}']` before it calls `{self.forward}`.")
            self.was_read = True
        return super().__getitem__(key)

    def get(self, key, default=None):
        return self[key] if key in self else default

    def shape(self, anchor: torch.Tensor, statistics: torch.Tensor) -> None:
        if self.statistics is not None:
            raise TRLContractError(f"its loss calls `{self.forward}` more than once.")
        self[self.key] = anchor
        self.statistics = statistics

    def finish(self) -> torch.Tensor:
        if self.statistics is None:
            raise TRLContractError(f"its loss does not call `{self.forward}`.")
        if not self.was_read:
            raise TRLContractError(f"its loss does not read `inputs['{self.key}']`.")
        return self.statistics


def check_loss(trainer_class: type, loss: str, forward: str, key: str) -> None:
    """
    Reads the source of TRL's loss and raises [`TRLContractError`], naming what moved, unless it has the order of
    calls, the key and the tuple that [`SAGEGRPOTrainer`] relies on. What it cannot see is checked again while a loss
    runs.

    Args:
        trainer_class (`type`):
            TRL's trainer.
        loss (`str`):
            Its method that computes the loss.
        forward (`str`):
            Its method that the loss gets the policy's log-probabilities from.
        key (`str`):
            Key of the reference's log-probabilities in a batch.
    """
    missing = [name for name in (loss, forward) if not hasattr(trainer_class, name)]
    if missing:
        raise TRLContractError(f"`{trainer_class.__name__}` has no method {missing}.")
    tree = ast.parse(textwrap.dedent(inspect.getsource(getattr(trainer_class, loss))))
    forwards = [n for n in ast.walk(tree) if isinstance(n, ast.Call) and ast.unparse(n.func) == f"self.{forward}"]
    reads = [n.lineno for n in ast.walk(tree) if isinstance(n, ast.Constant) and n.value == key]
    if len(forwards) != 1:
        raise TRLContractError(f"its loss calls `{forward}` {len(forwards)} times, not once.")
    if not reads:
        raise TRLContractError(f"its loss does not read `inputs['{key}']`.")
    if min(reads) < forwards[0].lineno:
        raise TRLContractError(f"its loss reads `inputs['{key}']` before it calls `{forward}`.")
    targets = [n.targets[0] for n in ast.walk(tree) if isinstance(n, ast.Assign) and n.value is forwards[0]]
    if not (targets and isinstance(targets[0], ast.Tuple) and len(targets[0].elts) == 3):
        raise TRLContractError(f"its loss does not unpack 3 values (logps, entropies, aux_loss) from `{forward}`.")
