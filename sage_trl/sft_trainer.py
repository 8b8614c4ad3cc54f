"""TRL's SFTTrainer with this package's pushes to the Hub."""

from trl import SFTTrainer

from .publishing import PublishingMixin


class PublishingSFTTrainer(PublishingMixin, SFTTrainer):
    """[`~trl.SFTTrainer`] that pushes what `sage_trl/hub.py` lists."""
