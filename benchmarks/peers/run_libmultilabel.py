"""LibMultiLabel's AttentionXML from the files of a slice: seconds of each level, documents per second, scores, memory.

    python run_libmultilabel.py SLICE [--threads 2] [--workers 0]

SLICE is a folder that benchmarks/attention_xml.py has written: train.tsv, valid.tsv, test.tsv, vectors.txt,
settings.json. LibMultiLabel's command line is not in its wheel, so its trainer of label trees is called as that command
line would: two levels, the best epoch of each by nDCG@5 on the held-out documents, no early stopping. Training seconds
are those of the training epochs only; validation and checkpoints are included in the seconds of the level, clustering
and the ranking of clusters for the second level only in `fit`. Scores are those of LibMultiLabel's own test. If all
clusters have the same size (the number of labels is a multiple of theirs), version 0.10 fails: use another slice then.
"""

from __future__ import annotations

import argparse
import json
import logging
import tempfile
import time
import warnings
from pathlib import Path

import libmultilabel.nn.attentionxml as attentionxml
import torch
from libmultilabel.common_utils import AttributeDict
from libmultilabel.nn import data_utils, nn_utils
from lightning import Trainer
from lightning.pytorch.callbacks import Callback
from measuring import Meter

METRICS = ("P@1", "P@3", "P@5")


class Clock(Callback):
    """Seconds of one level: all of it, and its training epochs alone."""

    def __init__(self) -> None:
        self.level = self.training = self.begin = self.epoch = 0.0
        self.epochs = 0

    def on_fit_start(self, trainer, pl_module) -> None:
        """The level begins."""
        self.begin = time.perf_counter()

    def on_train_epoch_start(self, trainer, pl_module) -> None:
        """An epoch begins."""
        self.epoch = time.perf_counter()

    def on_validation_start(self, trainer, pl_module) -> None:
        """The training of an epoch ends; validation follows."""
        self.training += time.perf_counter() - self.epoch
        self.epochs += 1

    def on_fit_end(self, trainer, pl_module) -> None:
        """The level ends."""
        self.level = time.perf_counter() - self.begin


class Tester(Trainer):
    """Keeps the scores of a test, which LibMultiLabel only prints."""

    scores: dict[str, float]

    def test(self, *arguments, **keywords):
        """Test and keep the scores."""
        Tester.scores = super().test(*arguments, **keywords)[0]


def config(settings: dict, scratch: Path, workers: int) -> AttributeDict:
    """The settings that LibMultiLabel's YAML and its defaults would give."""
    return AttributeDict(
        multiclass=False,
        cpu=True,
        silent=True,
        data_workers=workers,
        max_seq_length=settings["words"],
        cluster_size=settings["cluster_size"],
        beam_width=settings["beam_width"],
        network_config={
            "rnn_dim": settings["rnn_dim"],
            "linear_size": settings["hidden"],
            "freeze_embed_training": settings["frozen"],
            "embed_dropout": settings["word_dropout"],
            "post_encoder_dropout": settings["dropout"],
        },
        loss_function="binary_cross_entropy_with_logits",
        optimizer="adam",
        learning_rate=settings["rate"],
        momentum=0.9,
        weight_decay=0,
        lr_scheduler=None,
        scheduler_config=None,
        epochs=settings["epochs"],
        patience=settings["epochs"],
        batch_size=settings["batch_size"],
        eval_batch_size=settings["batch_size"],
        shuffle=True,
        limit_train_batches=1.0,
        limit_val_batches=1.0,
        limit_test_batches=1.0,
        monitor_metrics=[*METRICS, "nDCG@5"],
        val_metric="nDCG@5",
        early_stopping_metric="nDCG@5",
        metric_threshold=0.5,
        save_k_predictions=0,
        predict_out_path=str(scratch / "predictions.txt"),
        checkpoint_dir=str(scratch / "checkpoints"),
        log_path=str(scratch / "logs.json"),
    )


def quiet() -> None:
    """Silence log messages between the measurements."""
    warnings.simplefilter("ignore")
    for name in ("", "lightning.pytorch", "libmultilabel"):
        logging.getLogger(name).setLevel(logging.ERROR)


def main() -> None:
    """Train, test, measure."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("slice", type=Path)
    options.add_argument("--threads", type=int, default=2)
    options.add_argument("--workers", type=int, default=0, help="loader processes; LibMultiLabel's default is 4")
    given = options.parse_args()
    quiet()
    torch.set_num_threads(given.threads)
    settings = json.loads((given.slice / "settings.json").read_text(encoding="utf-8"))
    nn_utils.set_seed(settings["seed"])
    nn_utils.init_device(use_cpu=True)
    names = [str(given.slice / f"{part}.tsv") for part in ("train", "test", "valid")]
    documents = data_utils.load_datasets(*names)
    classes = data_utils.load_or_build_label(documents)
    words, vectors = data_utils.load_or_build_text_dict(
        documents["train"], embed_file=str(given.slice / "vectors.txt"), silent=True
    )
    meter = Meter("libmultilabel", "lightning", "torch")
    clocks: list[Clock] = []
    made = attentionxml.init_trainer

    def watched(*arguments, **keywords):
        trainer = made(*arguments, **keywords)
        clocks.append(Clock())
        trainer.callbacks.append(clocks[-1])
        return trainer

    attentionxml.init_trainer, attentionxml.Trainer = watched, Tester
    with tempfile.TemporaryDirectory() as scratch:
        asked = config(settings, Path(scratch), given.workers)
        trainer = attentionxml.PLTTrainer(asked, classes=classes, embed_vecs=vectors, word_dict=words)
        meter.clock("fit", lambda: trainer.fit(documents), memory_too=True)
        meter.clock("predict", lambda: trainer.test(documents["test"]))
    learned = len(documents["train"])
    meter.found |= {
        "levels": [clock.level for clock in clocks],
        "training": [clock.training for clock in clocks],
        "rates": [learned * clock.epochs / clock.training for clock in clocks],
        "rate": learned * sum(clock.epochs for clock in clocks) / sum(clock.training for clock in clocks),
        "epochs": [clock.epochs for clock in clocks],
        "labels": len(classes),
        "vocabulary": len(words) - 2,
        **{metric: Tester.scores[metric] for metric in METRICS},
    }
    meter.report()


if __name__ == "__main__":
    main()
