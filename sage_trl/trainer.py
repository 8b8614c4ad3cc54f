"""
GRPO with a reshaped anchor. The only module that knows TRL's internals; these are the ones it relies on:

- `_compute_loss(model, inputs)` calls `_get_per_token_logps_and_entropies(...)` once, which returns
  `(logps, entropies, aux_loss)`, and reads `inputs["ref_per_token_logps"]` only after that;
- `_generate_and_score_completions(inputs)` returns the batch, with the reference forward's log-probabilities in it as
  `"ref_per_token_logps"`, and TRL shuffles and splits every `(B, ...)` tensor of the batch alike;
- `_calculate_rewards(...)` returns all processes' rewards, shape (completions, functions), whole groups in order;
- `_metrics[mode]` collects what `log` averages; `reward_func_names`, `num_generations`, `num_generations_eval`,
  `_tokenizer`, `_tag_names`, `_name`, `_paper`, `create_model_card`, and transformers'
  `end`, `model_wrapped`;
- `vllm_generation` has the engine and `sync_weights`, done when `_last_loaded_step` is not the step;
- `_step` counts micro-batches and `_buffered_inputs` holds the completions until they are used up; transformers saves
  and loads a run's place by `_save_rng_state`, `_load_rng_state` and `_load_from_checkpoint`, and sums its loss in
  `_tr_loss`, `_total_loss_scalar` and `_globalstep_last_logged`;
- `add_fused_lm_head` (from 1.15 on) says which per-token outputs a model gives.

So the loss gets a shallow copy of its inputs, and the shaped anchor is written into that copy as soon as the policy's
log-probabilities exist: no line of TRL's loss is copied and no forward pass is added. The original is left alone,
since TRL uses it again when `num_iterations > 1`.
"""

from pathlib import Path

import torch
import trl
from accelerate.logging import get_logger
from packaging.version import Version
from trl import GRPOTrainer
from trl.models import unwrap_model_for_generation

from .anchor import (
    anchor_statistics,
    guide_values,
    prepared_extras,
    sequence_credit,
    shape_anchor,
    summarize_statistics,
)
from .bases import check_base
from .card import PAPER, describe_method
from .checkpoints import keep_dtypes, load_state
from .config import SAGEGRPOConfig
from .contract import TESTED_TRL, LossInputs, TRLContractError, check_loss
from .evaluation.monitor import PassAtKMonitor, keep_base_weights, without_dataset
from .guides import GuideFunction, GuideSignals, Rollout
from .publishing import PublishingMixin
from .rows import credit_groups, gather_rows, own_rows
from .seeds import StepSeeds, derive_generator
from .watch import IdleGuideWatch

FORWARD = "_get_per_token_logps_and_entropies"
REFERENCE = "ref_per_token_logps"
EXTRA = "sage_extra."  # what a guide prepared, in a batch
FROM_1_15 = Version(trl.__version__) >= Version("1.15")
REFERENCE_FILE = "sage_reference.pt"  # a synced reference, in a checkpoint

logger = get_logger(__name__)


def check_trl_contract(trainer_class: type = GRPOTrainer) -> None:
    """Raises [`TRLContractError`] unless TRL's loss is as [`SAGEGRPOTrainer`] relies on."""
    check_loss(trainer_class, "_compute_loss", FORWARD, REFERENCE)


def _valid_mask(batch: dict) -> torch.Tensor:
    """Where a token counts: neither padding nor a tool's output."""
    return batch["completion_mask"] * batch["tool_mask"] if "tool_mask" in batch else batch["completion_mask"]


class SAGEGRPOTrainer(PublishingMixin, GRPOTrainer):
    """
    Trainer for SAGE: Group Relative Policy Optimization whose KL anchor is reshaped by a guide, `ref` -> `q * ref`.

    Takes every argument of [`~trl.GRPOTrainer`] and one more.

    Example:

    ```python
    from sage_trl import BranchGuide, SAGEGRPOConfig, SAGEGRPOTrainer
    from sage_trl.data.countdown import make_countdown
    from sage_trl.rewards.countdown import countdown_reward

    trainer = SAGEGRPOTrainer(
        model="examples/countdown/model",
        reward_funcs=countdown_reward,
        args=SAGEGRPOConfig(output_dir="outputs/branch", max_completion_length=16, max_steps=10, bf16=False),
        train_dataset=make_countdown(1000),
        guide=BranchGuide(threshold=1.3),
    )
    trainer.train()
    ```

    Args:
        guide ([`GuideFunction`], *optional*):
            The guide. If not given, it is built from `guide` and `guide_kwargs` of the configuration.
        *args, **kwargs:
            Arguments of [`~trl.GRPOTrainer`]; `args` is a [`SAGEGRPOConfig`].

    Raises:
        [`ValueError`], [`TypeError`], [`ImportError`]: settings that contradict each other or name what is not there.
        [`TRLContractError`]: the installed TRL computes its loss in another way than this class relies on.
    """

    _tag_names = ["trl", "grpo", "sage"]
    _name = "SAGE"
    _paper = PAPER

    def __init__(self, model, reward_funcs=None, args=None, *other_args, guide: GuideFunction | None = None, **kwargs):
        args = SAGEGRPOConfig.of(args, model)
        guide = args.settle_guide(guide)
        if trl.__version__ not in TESTED_TRL:
            check_trl_contract(GRPOTrainer)
        check_base(GRPOTrainer, model, args, other_args, kwargs)
        self.guide = guide
        self._watch = None if guide is None else IdleGuideWatch(guide)
        self._loss_inputs: LossInputs | None = None  # set while TRL computes a loss
        self._forwards: list | None = None  # set while TRL scores completions and its forwards are wanted
        self._micro_batch = {"train": StepSeeds(), "eval": StepSeeds()}
        if args.eval_pass_at_k is not None:
            other_args, kwargs = without_dataset(other_args, kwargs)
        super().__init__(model, reward_funcs, args, *other_args, **kwargs)

        self._pass_column = args.pass_column(self.reward_func_names)
        self.monitor = PassAtKMonitor.of(args, self._tokenizer, self.accelerator.unwrap_model(self.model))
        # Before 1.15 every forward gives entropies when asked to
        if self._needs_ref_entropies and self.ref_model is not None and FROM_1_15:
            from trl.trainer.utils import add_fused_lm_head

            add_fused_lm_head(
                self.accelerator.unwrap_model(self.ref_model),
                temperature=self.temperature,
                cast_lm_head_to_fp32=args.cast_lm_head_to_fp32,
                outputs=("log_probs", "entropy"),
            )

    @property
    def _needs_ref_entropies(self) -> bool:
        return self.guide is not None and "ref_entropies" in self.guide.requires

    # The seam: the loss

    def _compute_loss(self, model, inputs):
        if self.beta == 0.0:
            return super()._compute_loss(model, inputs)
        if self.args.anchor == "sequence":  # the anchor is in the advantages
            beta, self.beta = self.beta, 0.0
            try:
                return super()._compute_loss(model, inputs)
            finally:
                self.beta = beta
        self._loss_inputs = LossInputs(inputs, REFERENCE, FORWARD)
        try:
            loss = super()._compute_loss(model, self._loss_inputs)
            statistics = self._loss_inputs.finish()
        finally:
            self._loss_inputs = None
        self._log_statistics(statistics)
        return loss

    def _log_statistics(self, statistics: torch.Tensor) -> None:
        # One fixed-size row from every process, whatever its data
        metrics = summarize_statistics(self.accelerator.gather(statistics))
        for name, value in metrics.items():
            self._metrics[self._mode][f"sage/{name}"].append(value)
        if self._watch is not None and self._mode == "train":
            self._watch.see(self.state.global_step, metrics["active_frac"])

    def _get_per_token_logps_and_entropies(self, *args, **kwargs):
        # A full reference model has entropies only where a guide asks for them
        if self._forwards is not None and (self._needs_ref_entropies or args[0] is not self.ref_model):
            kwargs["compute_entropy"] = True
        outputs = super()._get_per_token_logps_and_entropies(*args, **kwargs)
        if len(outputs) != 3:
            raise TRLContractError(
                f"TRL's `_get_per_token_logps_and_entropies` returned {len(outputs)} values, not the 3 "
                "(logps, entropies, aux_loss) it is known to return."
            )
        if self._loss_inputs is not None:
            q, _, statistics = self._guide(self._loss_inputs, self._loss_inputs.reference, *outputs[:2])
            self._loss_inputs.shape(shape_anchor(self._loss_inputs.reference, q), statistics)
        elif self._forwards is not None:
            self._forwards.append((args, kwargs, *outputs[:2]))
        return outputs

    def _guide(
        self, inputs: dict, reference: torch.Tensor, logps: torch.Tensor, entropies: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """q, the mask of the tokens that count, and a row of statistics."""
        mask = _valid_mask(inputs)
        if self.guide is None:
            values = q = torch.ones(mask.shape, dtype=torch.float32, device=mask.device)
        else:
            values = guide_values(
                self.guide,
                GuideSignals(
                    policy_logps=logps,
                    ref_logps=reference,
                    mask=mask,
                    entropies=entropies,
                    ref_entropies=inputs.get("ref_entropies"),
                    completion_ids=inputs["completion_ids"],
                    prompt_ids=inputs["prompt_ids"],
                    advantages=inputs["advantages"],
                    tokenizer=self._tokenizer,
                    step=self.state.global_step,
                    max_steps=max(1, self.state.max_steps),
                    generator=self._noise_generator(),
                    extra={key.removeprefix(EXTRA): value for key, value in inputs.items() if key.startswith(EXTRA)},
                ),
            )
            q = values.clamp(self.args.q_min, self.args.q_max)
        return q, mask, anchor_statistics(logps, reference, mask, values, q)

    def _noise_generator(self) -> torch.Generator:
        mode, process = self._mode, self.accelerator.process_index  # evaluation has a stream of its own
        place = self._micro_batch[mode].next(self.state.global_step)
        return derive_generator(self.accelerator.device, self.args.seed, *place, process, mode == "eval")

    @property
    def _mode(self) -> str:
        return "train" if self.model.training else "eval"

    # Scoring of completions

    def _generate_and_score_completions(self, inputs):
        is_sequence = self.args.anchor == "sequence" and self.beta != 0.0
        if not (self._needs_ref_entropies or is_sequence):
            batch = super()._generate_and_score_completions(inputs)
            self._prepare_guide(batch)
            return batch
        self._forwards = []
        try:
            batch = super()._generate_and_score_completions(inputs)
            forwards = self._forwards
        finally:
            self._forwards = None
        args, kwargs, _, ref_entropies = self._forward_of(batch, REFERENCE, forwards)
        if self._needs_ref_entropies:
            batch["ref_entropies"] = ref_entropies
        self._prepare_guide(batch)
        if is_sequence:
            if "old_per_token_logps" in batch:
                *_, logps, entropies = self._forward_of(batch, "old_per_token_logps", forwards)
            else:  # TRL needs none here, so this one is ours
                with torch.no_grad():
                    logps, entropies, _ = self._get_per_token_logps_and_entropies(
                        self.model, *args[1:], **(kwargs | {"compute_entropy": True})
                    )
            self._credit(batch, logps, entropies)
        return batch

    def _prepare_guide(self, batch: dict) -> None:
        """Shows the guide whole groups, and puts this process's rows of what it makes of them into the batch."""
        if self.guide is None or not self.guide.prepares:
            return
        ids = gather_rows(self.accelerator, batch["completion_ids"])
        mask = gather_rows(self.accelerator, _valid_mask(batch))
        weighted = (self._rewards * self.reward_weights.to(self._rewards.device)).nansum(dim=1)
        steps = {"step": self.state.global_step, "max_steps": max(1, self.state.max_steps)}
        rollout = Rollout(ids, mask != 0, weighted, self._correct, self._group_size, self._tokenizer, **steps)
        for name, value in prepared_extras(self.guide, rollout).items():
            batch[EXTRA + name] = own_rows(self.accelerator, value, batch["completion_ids"])

    def _forward_of(self, batch: dict, key: str, forwards: list[tuple]) -> tuple:
        """The forward whose log-probabilities TRL put into the batch: arguments, log-probabilities, entropies."""
        found = [forward for forward in forwards if forward[2] is batch[key]]
        if len(found) != 1:
            raise TRLContractError(f"its `{key}` did not come out of one forward pass.")
        return found[0]

    def _credit(self, batch: dict, logps: torch.Tensor, entropies: torch.Tensor) -> None:
        """Adds the anchor to the advantages, while the groups are still whole."""
        q, mask, statistics = self._guide(batch, batch[REFERENCE], logps, entropies)
        self._log_statistics(statistics)
        ahead = self.guide is not None and self.guide.looks_ahead
        credit = sequence_credit(logps, batch[REFERENCE], q, mask, looks_ahead=ahead)
        batch["advantages"], kl = credit_groups(
            self.accelerator, batch["advantages"], credit, mask, self._group_size, self.beta
        )
        self._metrics[self._mode]["sage/kl_sequence"].append(kl)

    def _calculate_rewards(self, *args, **kwargs):
        self._rewards = super()._calculate_rewards(*args, **kwargs)
        group_pass = self._correct.view(-1, self._group_size).any(dim=1).float().mean()
        self._metrics[self._mode]["sage/group_pass"].append(group_pass.item())
        return self._rewards

    @property
    def _correct(self) -> torch.Tensor:
        """Whether each completion of the last generation is correct, of all processes."""
        return self._rewards[:, self._pass_column] > self.args.pass_threshold

    @property
    def _group_size(self) -> int:
        return self.num_generations if self._mode == "train" else self.num_generations_eval

    # Pass@k on the evaluation schedule

    def evaluate(self, eval_dataset=None, ignore_keys=None, metric_key_prefix="eval"):
        dataset = self.eval_dataset if eval_dataset is None else eval_dataset
        if self.monitor is None or (dataset and metric_key_prefix != "eval"):
            return super().evaluate(eval_dataset, ignore_keys, metric_key_prefix)
        self.model.eval()
        found = self._measure_pass_at_k()
        if dataset:
            self._metrics["eval"].update({name: [value] for name, value in found.items()})
            metrics = super().evaluate(eval_dataset, ignore_keys, metric_key_prefix)
        else:
            metrics = {f"{metric_key_prefix}_{name}": value for name, value in found.items()}
            super(GRPOTrainer, self).log(metrics)  # TRL's own shows the completions of the last step again
            self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics

    def _measure_pass_at_k(self) -> dict[str, float]:
        if self.use_vllm:
            if self.state.global_step != self._last_loaded_step:  # which stays: training synchronizes as if alone
                with keep_base_weights(self.model):
                    self.vllm_generation.sync_weights()
            sharing = self.args.vllm_tensor_parallel_size
            return self.monitor.measure_vllm(self.vllm_generation.llm, self.accelerator, sharing)
        kept = {"gradient_checkpointing_kwargs": self.args.gradient_checkpointing_kwargs} if FROM_1_15 else {}
        with unwrap_model_for_generation(self.model_wrapped, self.accelerator, **kept) as model:
            return self.monitor.measure_model(model, self.accelerator)

    # Resuming

    def _save_rng_state(self, output_dir):
        super()._save_rng_state(output_dir)
        generate_every = self.args.steps_per_generation * self.num_iterations
        state = {
            "layout": self._batch_layout,
            "step": self._step,
            "micro_batch": self._micro_batch["train"].last,
            "metrics": dict(self._metrics["train"]),
            "loss": (self._tr_loss, self._total_loss_scalar, self._globalstep_last_logged),
            # Between two generations the completions are half used up
            "batches": self._buffered_inputs if self._step % generate_every else None,
        }
        torch.save(state, self._run_state_file(output_dir))
        if self.args.sync_ref_model:
            reference = self.accelerator.get_state_dict(self.ref_model)
            if self.args.should_save:
                torch.save(reference, Path(output_dir) / REFERENCE_FILE)
        # The main process writes trainer_state.json next, which says that everything is there
        self.accelerator.wait_for_everyone()

    def _load_from_checkpoint(self, resume_from_checkpoint, model=None):
        with keep_dtypes(model or self.model):
            super()._load_from_checkpoint(resume_from_checkpoint, model)

    def _load_rng_state(self, checkpoint):
        super()._load_rng_state(checkpoint)
        if checkpoint is None:
            return
        file = self._run_state_file(checkpoint)
        if not file.is_file():
            logger.warning(f"{checkpoint} was not saved by {type(self).__name__}: completions are generated anew.")
            return
        if self.args.sync_ref_model:
            reference = load_state(Path(checkpoint) / REFERENCE_FILE, self.accelerator.device)
            self.accelerator.unwrap_model(self.ref_model).load_state_dict(reference)
        state = load_state(file, self.accelerator.device)
        changed = [name for name, value in self._batch_layout.items() if state["layout"].get(name) != value]
        if changed:
            logger.warning(f"{changed} differ from those of {checkpoint}: completions are generated anew.")
            return
        self._step = state["step"]
        self._micro_batch["train"].last = tuple(state["micro_batch"])
        self._metrics["train"].update(state["metrics"])
        self._tr_loss, self._total_loss_scalar, self._globalstep_last_logged = state["loss"]
        self._buffered_inputs = state["batches"]

    @property
    def _batch_layout(self) -> dict[str, int]:
        names = ("per_device_train_batch_size", "gradient_accumulation_steps", "steps_per_generation")
        layout = {name: getattr(self.args, name) for name in (*names, "num_generations", "num_iterations")}
        return layout | {"num_processes": self.accelerator.num_processes}

    def _run_state_file(self, folder) -> Path:
        return Path(folder) / f"sage_state_{self.accelerator.process_index}.pt"

    # Publishing

    def create_model_card(self, model_name=None, dataset_name=None, tags=None):
        model_name = model_name or Path(self.args.hub_model_id or self.args.output_dir).name
        super().create_model_card(model_name=model_name, dataset_name=dataset_name, tags=tags)
        if self.is_world_process_zero():
            describe_method(self.args, self.guide)

    def end(self):
        # A reducer of DDP that is dropped after the process group joins gloo's thread while holding the GIL, for which
        # that thread may be waiting: a process then hangs at its very end. So the wrapped model goes first.
        self.model_wrapped = self.model
        self.accelerator.free_memory()
        super().end()
