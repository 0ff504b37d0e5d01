"""BiGRU baselines: every label scored for every document, with label-wise attention (BiGRU-LWAN) or without.

With attention each label has its own view of the document and its own weights (LibMultiLabel's BiGRULWAN, after
Mullenbach et al. 2018); without, the mean hidden state is the input of one linear output per label.

Cost: documents x words x recurrent weights, and with attention documents x words x labels x width, which is what trees
avoid. Memory is bounded by blocks of documents and labels; the weights of all labels are updated at every step.
What we do differently: words after a document's end have no weight, and biases start at each label's log-odds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from labelwise.config import Config as BaseConfig
from labelwise.encoders.word_config import RecurrentConfig, WordsConfig
from labelwise.methods.word_networks import WordNetworkMethod, WordTraining
from labelwise.networks.settings import OptimiserConfig

if TYPE_CHECKING:
    from labelwise.encoders.recurrent import RecurrentEncoder
    from labelwise.networks.levels import Level


TRAINING = WordTraining(batch_size=16, optimiser=OptimiserConfig(name="adam", rate=3e-4))
"""As AttentionXML, with LibMultiLabel's batch size and rate for BiGRU-LWAN."""


class BiGRU(WordNetworkMethod):
    """A BiGRU that scores all labels, with label-wise attention or without: the baseline of attention_xml."""

    name = "bigru"

    class Config(BaseConfig):
        """Parameters."""

        words: WordsConfig = WordsConfig()
        """The vocabulary and the words' vectors."""
        recurrent: RecurrentConfig = RecurrentConfig(cell="gru")
        """The recurrent layer."""
        attention: Literal["label", "none"] = "label"
        """Label-wise attention, or the mean of the hidden states for all labels."""
        training: WordTraining = TRAINING
        """Settings of training."""
        valid_fraction: Annotated[float, Field(ge=0, lt=1)] = 0.05
        """Fraction of the training documents held out to choose the best weights when the data has no valid part; at
        most 1,000 documents."""

    def _level(self, encoder: RecurrentEncoder, size: int) -> Level:
        from labelwise.heads.config import HeadConfig
        from labelwise.heads.flat import FlatHead
        from labelwise.heads.label_attention import LabelAttention
        from labelwise.heads.label_outputs import LabelOutput
        from labelwise.networks.levels import AttentionLevel, PooledLevel

        if self.config.attention == "none":
            return PooledLevel(encoder, FlatHead(encoder.width, size, HeadConfig(dropout=0.0)))
        output = LabelOutput(encoder.width, size)
        return AttentionLevel(encoder, LabelAttention(encoder.width, size, output))
