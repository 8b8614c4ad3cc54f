"""Settings of a run that are neither TRL's nor the guide's: its data, its rewards, and whether it is only tried."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .data.prompts import resolve_prompt_format
from .data.report import ON_BAD_ROWS
from .imports import nearest
from .recipe import parse_mapping
from .rewards.format import FORMAT_OF_REWARD
from .rewards.pool import TIMEOUT


@dataclass
class DataArguments:
    """
    Data of a run, and what every command has.

    Args:
        dataset_name (`str`, *optional*):
            Dataset of problems and answers: a .json, .jsonl, .csv or .parquet file, a folder that `save_to_disk`
            wrote or that is laid out as a dataset on the Hub, or a Hub id.
        dataset_config (`str`, *optional*):
            Configuration of a Hub dataset.
        dataset_train_split (`str`, *optional*, defaults to `"train"`):
            Split to train on.
        dataset_test_split (`str`, *optional*, defaults to `"test"`):
            Split to evaluate on, where `eval_strategy` asks for evaluation.
        prompt_format (`str`, *optional*):
            How a problem of the dataset is put to the model: `"qwen-math"`, `"r1"`, `"tags"` or `"plain"`. Not given
            if, and only if, the dataset's problems are messages already.
        problem_column (`str`, *optional*):
            Column of the problems. If not given: `problem`, `question` or `prompt`, whichever there is.
        answer_column (`str`, *optional*):
            Column of the answers or worked solutions. If not given: `answer`, `expected_answer` or `solution`,
            whichever there is.
        max_prompt_length (`int`, *optional*, defaults to `2048`):
            Rows of the dataset whose prompt has more tokens, chat template included, are dropped and counted.
        on_bad_rows (`str`, *optional*, defaults to `"drop"`):
            What to do with rows of the dataset that cannot be used: `"drop"` and count them, or `"error"`.
        save_on_signal (`bool`, *optional*, defaults to `False`):
            Whether a run that gets SIGTERM saves a checkpoint after the step it is in, and ends with exit code 0.
        dry_run (`bool`, *optional*, defaults to `False`):
            Whether to load all but the weights, print what would happen, and end without training.
    """

    dataset_name: str | None = field(
        default=None,
        metadata={
            "help": "Dataset of problems and answers: a .json, .jsonl, .csv or .parquet file, a folder that "
            "`save_to_disk` wrote or that is laid out as on the Hub, or a Hub id."
        },
    )
    dataset_config: str | None = field(default=None, metadata={"help": "Configuration of a Hub dataset."})
    dataset_train_split: str = field(default="train", metadata={"help": "Split to train on."})
    dataset_test_split: str = field(
        default="test", metadata={"help": "Split to evaluate on, if `eval_strategy` is set."}
    )
    prompt_format: str | None = field(
        default=None,
        metadata={
            "help": "How a problem of the dataset is put to the model: 'qwen-math', 'r1', 'tags' or 'plain'. Leave it "
            "unset if the problems are messages already."
        },
    )
    problem_column: str | None = field(
        default=None,
        metadata={"help": "Column of the problems. Default: problem, question or prompt, whichever there is."},
    )
    answer_column: str | None = field(
        default=None,
        metadata={
            "help": "Column of the answers or worked solutions. Default: answer, expected_answer or solution, "
            "whichever there is."
        },
    )
    max_prompt_length: int | None = field(
        default=2048,
        metadata={"help": "Rows of the dataset whose prompt has more tokens are dropped and counted."},
    )
    on_bad_rows: str = field(
        default="drop",
        metadata={"help": "What to do with unusable rows of the dataset: 'drop' and count them, or 'error'."},
    )
    save_on_signal: bool = field(
        default=False,
        metadata={"help": "On SIGTERM, save a checkpoint after the step in progress and end with exit code 0."},
    )
    dry_run: bool = field(
        default=False,
        metadata={"help": "Load all but the weights, print what would happen, and end. Needs no GPU."},
    )

    def __post_init__(self):
        if self.on_bad_rows not in ON_BAD_ROWS:
            raise ValueError(
                f"`on_bad_rows` is '{self.on_bad_rows}'.{nearest(self.on_bad_rows, ON_BAD_ROWS)} It must be one of "
                f"{list(ON_BAD_ROWS)}."
            )
        if self.max_prompt_length is not None and self.max_prompt_length < 1:
            raise ValueError(f"`max_prompt_length` is {self.max_prompt_length}; it must be at least 1.")
        if self.prompt_format is not None:
            resolve_prompt_format(self.prompt_format)


@dataclass
class SAGEScriptArguments(DataArguments):
    """
    Data and rewards of a run. The data's settings are those of [`DataArguments`].

    Args:
        task (`str`, *optional*):
            Built-in task that generates the problems: `"countdown"`. Give this or `dataset_name`.
        task_kwargs (`dict[str, Any]`, *optional*):
            Arguments of the task's generator, such as `num_rows` and `max_numbers`.
        reward_funcs (`list[str]`, *optional*):
            Reward functions: built-in names, or import paths `package.module:function` or `path/to/file.py:function`.
            `reward_weights` weighs them.
        reward_timeout (`float`, *optional*, defaults to `5.0`):
            Seconds that the math reward may take over one answer. An answer that takes longer is wrong.
        reward_workers (`int`, *optional*):
            Worker processes of the math reward, on each rank. Defaults to the rank's share of the machine's cores, at
            most 8.
    """

    _argument_group_name = "data and rewards"

    task: str | None = field(
        default=None, metadata={"help": "Built-in task that generates the problems: 'countdown'. Or `dataset_name`."}
    )
    task_kwargs: dict[str, Any] | str | None = field(
        default=None,
        metadata={"help": "Arguments of the task's generator: a mapping in YAML, JSON on the command line."},
    )
    reward_funcs: list[str] | None = field(
        default=None,
        metadata={
            "help": "Reward functions: built-in names, or import paths 'package.module:function' or "
            "'path/to/file.py:function'. `reward_weights` weighs them."
        },
    )
    reward_timeout: float = field(
        default=TIMEOUT,
        metadata={
            "help": "Seconds that the math reward may take over one answer. An answer that takes longer is wrong."
        },
    )
    reward_workers: int | None = field(
        default=None,
        metadata={"help": "Worker processes of the math reward, on each rank. Default: its cores, at most 8."},
    )

    def __post_init__(self):
        super().__post_init__()
        self.task_kwargs = parse_mapping(self.task_kwargs, "task_kwargs")
        if (self.task is None) == (self.dataset_name is None):
            raise ValueError(
                f"`task` is {self.task!r} and `dataset_name` is {self.dataset_name!r}; give exactly one of them."
            )
        if isinstance(self.reward_funcs, str):  # one name without a dash in YAML
            self.reward_funcs = [self.reward_funcs]
        if not self.reward_funcs:
            raise ValueError("`reward_funcs` is empty; name at least one reward function, such as 'math'.")
        for name, value in (("reward_timeout", self.reward_timeout), ("reward_workers", self.reward_workers)):
            if value is not None and not value > 0:
                raise ValueError(f"`{name}` is {value}; it must be above 0.")
        if self.prompt_format is None:
            return
        if self.task is not None:
            raise ValueError(
                f"`prompt_format` is '{self.prompt_format}', but task '{self.task}' has prompts of its own. Leave it "
                "unset."
            )
        for reward in self.reward_funcs:
            if FORMAT_OF_REWARD.get(reward, self.prompt_format) != self.prompt_format:
                raise ValueError(
                    f"`reward_funcs` names '{reward}', which rewards the form of `prompt_format` "
                    f"'{FORMAT_OF_REWARD[reward]}', but `prompt_format` is '{self.prompt_format}'."
                )


@dataclass
class GuideArguments(SAGEScriptArguments):
    """
    What to look at, besides the recipe. The others are those of [`SAGEScriptArguments`].

    Args:
        model (`str`, *optional*):
            The policy: a model or an adapter, by Hub id or folder. Defaults to the recipe's `model_name_or_path`.
        ref_model (`str`, *optional*):
            The reference. Defaults to the base of an adapter; to the recipe's model for a folder that training left;
            else to the policy itself, as at the start of a run.
        prompts (`str`, *optional*):
            File of problems to look at instead of the recipe's, with their completions if it has a column
            `completion` (a text, or a list of texts).
        num_prompts (`int`, *optional*, defaults to `4`):
            Problems to look at.
        num_samples (`int`, *optional*):
            Completions of each problem. Defaults to 4, and to the recipe's `num_generations` for a guide that sees
            whole groups.
        step (`int`, *optional*):
            Optimizer step whose strength of the guide is shown. Defaults to the checkpoint's own, else 0.
        output (`str`, *optional*, defaults to `"outputs/guide.html"`):
            The page.
    """

    _argument_group_name = "what to look at"

    model: str | None = field(
        default=None, metadata={"help": "The policy: a model or an adapter. Default: the recipe's model_name_or_path."}
    )
    ref_model: str | None = field(
        default=None,
        metadata={
            "help": "The reference. Default: an adapter's base; the recipe's model for what training left; else the "
            "policy itself."
        },
    )
    prompts: str | None = field(
        default=None,
        metadata={
            "help": "File of problems to look at instead of the recipe's, with their completions if it has a column "
            "'completion'."
        },
    )
    num_prompts: int = field(default=4, metadata={"help": "Problems to look at."})
    num_samples: int | None = field(
        default=None,
        metadata={"help": "Completions of each. Default: 4; num_generations for a guide that sees whole groups."},
    )
    step: int | None = field(
        default=None,
        metadata={"help": "Step whose strength of the guide is shown. Default: the checkpoint's, else 0."},
    )
    output: str = field(default="outputs/guide.html", metadata={"help": "The page."})

    def __post_init__(self):
        super().__post_init__()
        for name in ("num_prompts", "num_samples"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"`{name}` is {value}; it must be at least 1.")
        if self.step is not None and self.step < 0:
            raise ValueError(f"`step` is {self.step}; it must be at least 0.")
        if Path(self.output).is_dir():
            raise IsADirectoryError(f"`output` is '{self.output}', a folder; name a file.")


@dataclass
class SFTScriptArguments(DataArguments):
    """
    Data of the supervised stage. The rest of the data's settings are those of [`DataArguments`].

    Args:
        solution_column (`str`, *optional*, defaults to `"generated_solution"`):
            Column of the worked solutions that the model learns to write.
        only_number_answers (`bool`, *optional*, defaults to `False`):
            Whether rows whose answer is no plain number are dropped and counted.
        max_text_share (`float`, *optional*, defaults to `1.0`):
            Share of `max_length` that prompt and solution may fill together. Rows beyond it are dropped and counted:
            none is truncated.
    """

    _argument_group_name = "data"

    solution_column: str = field(
        default="generated_solution",
        metadata={"help": "Column of the worked solutions that the model learns to write."},
    )
    only_number_answers: bool = field(
        default=False, metadata={"help": "Drop and count rows whose answer is no plain number."}
    )
    max_text_share: float = field(
        default=1.0,
        metadata={
            "help": "Share of `max_length` that prompt and solution may fill. Longer rows are dropped, counted."
        },
    )

    def __post_init__(self):
        super().__post_init__()
        for name in ("dataset_name", "prompt_format"):
            if getattr(self, name) is None:
                raise ValueError(f"`{name}` is not set.")
        if not 0 < self.max_text_share <= 1:
            raise ValueError(f"`max_text_share` is {self.max_text_share}; it must be above 0 and at most 1.")
