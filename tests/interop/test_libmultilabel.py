"""Configs in LibMultiLabel's form become configs of ours; nothing in them is lost without a word."""

import pytest

from cli.commands import labelwise
from labelwise.config import ConfigSource
from labelwise.errors import ConfigError
from labelwise.interop.libmultilabel import import_libmultilabel
from labelwise.runs.config import run_config

ATTENTION = """\
data_name: shelf
training_file: books/train.txt
val_file: books/val.txt
test_file: books/test.txt
data_format: txt
min_vocab_freq: 2
max_seq_length: 120
embed_file: vectors/words.txt
normalize_embed: true
seed: 11
epochs: 12
batch_size: 24
optimizer: adamw
learning_rate: 2e-3
weight_decay: 0.01
patience: 4
val_metric: nDCG@3
monitor_metrics: [P@1, NDCG@3, RP@15, Micro-F1]
metric_threshold: 0.4
model_name: AttentionXML
cluster_size: 16
beam_width: 20
network_config:
  rnn_dim: 64
  rnn_layers: 1
  linear_size: [32, 16]
  freeze_embed_training: true
  embed_dropout: 0.1
  post_encoder_dropout: 0.3
loss_function: binary_cross_entropy_with_logits
shuffle: true
"""
GRU = "training_file: train.txt\nmodel_name: BiGRULWAN\nembed_file: words.txt\nval_size: 0.1\n"
TREE = """\
training_file: train.txt
test_file: test.txt
linear: true
linear_technique: tree
liblinear_options: "-s 1 -B 1 -e 0.001 -c2 -q"
tree_degree: 20
tree_ensemble_models: 4
beam_width: 7
seed: 3
monitor_metrics: [P@1, nDCG@5]
"""


def imported(text, name="theirs.yml"):
    return import_libmultilabel(ConfigSource.from_yaml(text, name))


def said(found):
    """What was said about each key, by key; several notes of a key are joined."""
    notes: dict[str, str] = {}
    for note in found.notes:
        notes[note.key] = notes.get(note.key, "") + str(note)
    return notes


def refused(text):
    with pytest.raises(ConfigError) as fault:
        imported(text)
    return str(fault.value)


def test_attention_xml_is_taken_over_whole():
    found = imported(ATTENTION)
    assert found.values == {
        "data": {"train": "books/train.txt", "valid": "books/val.txt", "test": "books/test.txt", "format": "tsv"},
        "run": {"folder": "runs/shelf_theirs"},
        "model": {
            "method": "attention_xml",
            "words": {
                "max_length": 120,
                "min_frequency": 2,
                "vectors": "vectors/words.txt",
                "normalise": True,
                "frozen": True,
            },
            "recurrent": {"width": 64, "word_dropout": 0.1, "dropout": 0.3},
            "hidden": [32, 16],
            "cluster_size": 16,
            "beam_width": 20,
            "training": {
                "epochs": 12,
                "batch_size": 24,
                "seed": 11,
                "optimiser": {"name": "adamw", "rate": 0.002, "weight_decay": 0.01, "decay_on": "all"},
                "validate_every": "epoch",
                "early_stopping": {"patience": 4},
                "metric": "nDCG@3",
            },
        },
        "evaluate": {"metrics": ["P@1", "nDCG@3", "RP@15", "micro-F1"], "threshold": 0.4},
        "calibrate": {"enabled": False},
    }
    assert set(said(found)) == {""}  # only what concerns the whole file


def test_bigru_gets_the_defaults_of_libmultilabel_and_learns_its_vectors():
    found = imported(GRU)
    model = found.values["model"]
    assert (model["method"], model["attention"]) == ("bigru", "label")
    assert model["recurrent"] == {"width": 512, "word_dropout": 0.2, "dropout": 0.0, "cell": "gru"}
    assert model["words"]["frozen"] is False
    assert model["training"]["optimiser"]["rate"] == 1e-4
    assert (model["training"]["epochs"], model["training"]["early_stopping"]) == (10_000, {"patience": 5})
    assert found.values["data"]["valid_fraction"] == 0.1
    filled = next(str(note) for note in found.notes if "LibMultiLabel's defaults" in str(note))
    assert "model.training.epochs 10000" in filled
    assert "valid_fraction" not in filled


@pytest.mark.parametrize(
    ("name", "cell", "attention"),
    [("BiGRULWAN", "gru", "label"), ("BiLSTMLWAN", "lstm", "label"), ("BiGRU", "gru", "none")],
)
def test_networks_that_score_all_labels(name, cell, attention):
    model = imported(GRU.replace("BiGRULWAN", name)).values["model"]
    assert (model["recurrent"]["cell"], model["attention"]) == (cell, attention)


def test_tree_of_svms():
    found = imported(TREE)
    assert found.values["model"] == {
        "method": "linear_tree",
        "tfidf": {"sublinear": False},
        "solver": {
            "loss": "squared_hinge",
            "cost_positive": 2.0,
            "cost_negative": 2.0,
            "bias": 1.0,
            "tolerance": 0.001,
            "max_passes": 300,
        },
        "seed": 3,
        "tree": "kway",
        "branching": 20,
        "leaf_size": 20,
        "trees": 4,
        "beam": 7,
        "post_processor": "l2_hinge",
    }
    assert "valid_fraction" not in found.values["data"]
    assert "-q" in said(found)["liblinear_options"]


def test_one_against_the_rest():
    text = "training_file: a.svm\ndata_format: svm\nlinear: true\nmonitor_metrics: Macro-F1\nval_size: 0.3\n"
    found = imported(text + "liblinear_options: -s 7 -w1 3 -w-1 0.5 -m 2\nbeam_width: 3\nepochs: 4\n")
    assert found.values["model"]["method"] == "linear_flat"
    assert "tfidf" not in found.values["model"]
    solver = found.values["model"]["solver"]
    assert (solver["loss"], solver["bias"]) == ("logistic", 0.0)
    assert (solver["cost_positive"], solver["cost_negative"], solver["tolerance"]) == (3.0, 0.5, 0.1)
    assert found.values["run"]["threads"] == 2
    assert found.values["data"]["format"] == "xc"
    assert found.values["evaluate"] == {"metrics": ["macro-F1"], "threshold": 0.5}
    assert {"val_size", "beam_width", "epochs"} <= set(said(found))


@pytest.mark.parametrize("text", [ATTENTION, GRU, TREE])
def test_the_result_is_valid_and_repeats_itself(text):
    written = imported(text).to_yaml("From somewhere.")
    config = run_config(ConfigSource.from_yaml(written, "ours.yml"))
    again = run_config(ConfigSource.from_yaml(config.to_yaml(), "ours.yml"))
    assert again.resolved() == config.resolved()
    assert config.resolved()["data"] == {**config.resolved()["data"], **imported(text).values["data"]}


def test_every_key_that_is_not_taken_over_is_told_with_its_line():
    more = """\
silent: true
cpu: no
data_workers: 2
label_file: labels.txt
include_test_labels: true
lr_scheduler: ReduceLROnPlateau
scheduler_config: {factor: 0.5}
liblinear_options: -s 1
momentum: 0.5
early_stopping_metric: P@1
learning_rat: 3
init_weight: null
"""
    text = ATTENTION.replace("  rnn_layers: 1\n", "  rnn_layers: 2\n  encoder_dropout: 0.2\n  heads: 8\n") + more
    lines = text.splitlines()
    notes = said(imported(text))
    keys = {line.split(":")[0] for line in more.splitlines()} - {"init_weight"}
    keys |= {f"network_config.{key}" for key in ("rnn_layers", "encoder_dropout", "heads")}
    assert set(notes) == {*keys, ""}
    for key in keys:
        line = next(n for n, text in enumerate(lines, 1) if text.strip().startswith(f"{key.split('.')[-1]}:"))
        assert notes[key].startswith(f"theirs.yml:{line}: {key}: ")
    assert "did you mean 'learning_rate'?" in notes["learning_rat"]


def test_values_without_counterpart_are_replaced_and_told():
    text = (
        ATTENTION.replace("adamw", "adamax")
        .replace("binary_cross_entropy_with_logits", "soft_margin_loss")
        .replace("val_metric: nDCG@3", "val_metric: Loss")
        .replace("[P@1, NDCG@3, RP@15, Micro-F1]", "[P@1, Micro-Precision, Another-Macro-F1]")
    )
    found = imported(text)
    training = found.values["model"]["training"]
    assert (training["optimiser"]["name"], training["metric"]) == ("adam", "nDCG@5")
    assert found.values["evaluate"] == {"metrics": ["P@1"]}
    notes = said(found)
    assert {"optimizer", "loss_function", "val_metric", "monitor_metrics", "metric_threshold"} <= set(notes)
    assert "Micro-Precision" in notes["monitor_metrics"]
    assert "Another-Macro-F1" in notes["monitor_metrics"]


def test_named_vectors_are_looked_for_where_libmultilabel_puts_them():
    found = imported(GRU.replace("words.txt", "glove.6B.200d"))
    assert found.values["model"]["words"]["vectors"] == ".vector_cache/glove.6B.200d.txt"
    assert "nothing is downloaded" in said(found)["embed_file"]
    own = imported(GRU.replace("words.txt", "glove.6B.200d") + "embed_cache_dir: kept\n")
    assert own.values["model"]["words"]["vectors"] == "kept/glove.6B.200d.txt"


def test_without_vectors_they_are_learned():
    found = imported(GRU.replace("embed_file: words.txt\n", ""))
    assert "vectors" not in found.values["model"]["words"]
    assert "drawn at random" in said(found)[""]


def test_a_number_of_held_out_documents_becomes_a_share(tmp_path):
    train = tmp_path / "train.txt"
    train.write_text("a\ttext\n" * 400)
    text = GRU.replace("train.txt", str(train)).replace("val_size: 0.1", "val_size: 50")
    assert imported(text).values["data"]["valid_fraction"] == 0.125
    train.unlink()
    found = imported(text)
    assert "valid_fraction" not in found.values["data"]
    assert "not there to be counted" in said(found)["val_size"]


def test_nothing_held_out():
    for change in ("val_size: 0", "merge_train_val: true"):
        found = imported(GRU.replace("val_size: 0.1", change) + "patience: 3\n")
        assert found.values["model"]["valid_fraction"] == 0.0
        assert "early_stopping" not in found.values["model"]["training"]
        assert "no documents are held out" in said(found)["patience"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (GRU.replace("BiGRULWAN", "KimCNN"), "theirs.yml:2: model_name: KimCNN is not offered"),
        (GRU.replace("BiGRULWAN", "BERT"), "text_encoder"),
        (GRU.replace("BiGRULWAN", "BiGRULWNA"), "did you mean 'BiGRULWAN'?"),
        (GRU.replace("model_name: BiGRULWAN\n", ""), "model_name is missing"),
        (GRU.replace("training_file", "test_file"), "training_file is missing"),
        (GRU + "data_format: svm\n", "theirs.yml:5: data_format"),
        (GRU + "epochs: many\n", "theirs.yml:5: epochs: a whole number is needed, got 'many'"),
        (GRU + "epochs: 1.5\n", "a whole number is needed"),
        (GRU + "patience: 0\n", "theirs.yml:5: model.training.early_stopping.patience"),
        (GRU + "epochs: .inf\n", "a whole number is needed, got inf"),
        (TREE.replace("-c2", "-m 1e400"), "-m needs a number, got '1e400'"),
        (GRU + "network_config: 3\n", "theirs.yml:5: network_config: a section"),
        (GRU + "network_config:\n  rnn_dim: 63\n", "theirs.yml:6: model.recurrent.width"),
        (GRU + "learning_rate: ['grid_search', [0.1, 0.2]]\n", "theirs.yml:5: learning_rate: this is a search"),
        (TREE.replace(": tree", ": thresholding"), "theirs.yml:4: linear_technique: 'thresholding' is not offered"),
        (TREE.replace(": tree", ": trees"), "did you mean 'tree'?"),
        (TREE.replace("-s 1", "-s 6"), "theirs.yml:5: liblinear_options: -s 6 is not offered"),
        (TREE.replace("-q", "-v 5"), "'-v' is not offered"),
        (TREE.replace("-c2 -q", "-c"), "-c needs a value"),
        (TREE.replace("-c2", "-c two"), "-c needs a number, got 'two'"),
        (TREE.replace("tree_degree: 20", "tree_degree: 1"), "theirs.yml:6: model.branching"),
        ("- a\n", "a config is a mapping"),
    ],
)
def test_what_cannot_be_imported_is_refused_with_its_line(text, message):
    assert message in refused(text)


def test_the_command_writes_a_file_that_trains(tmp_path):
    rows = ["fish cooking\tFried fish with chips", "fish\tFish of the deep sea", "socks\tHow socks are knitted"] * 4
    for name in ("train.txt", "test.txt"):
        (tmp_path / name).write_text("\n".join(rows) + "\n")
    (tmp_path / "svm.yml").write_text(TREE + "silent: true\n")
    done = labelwise("config", "import", "svm.yml", "-o", "ours.yml", cwd=tmp_path)
    assert done.out == ""
    assert "svm.yml:11: silent: left out" in done.err
    assert "# svm.yml:11: silent: left out" in (tmp_path / "ours.yml").read_text()
    assert "exists already" in labelwise("config", "import", "svm.yml", "-o", "ours.yml", cwd=tmp_path, code=2).err
    shown = labelwise("config", "show", "ours.yml", cwd=tmp_path).out
    assert "leaf_size: 20" in shown
    assert "P@1" in labelwise("train", "ours.yml", "--set", "run.report=false", cwd=tmp_path).out
    assert (tmp_path / "runs" / "svm" / "model").is_dir()


def test_the_command_reads_stdin_and_prints():
    done = labelwise("config", "import", "-", stdin=GRU)
    config = run_config(ConfigSource.from_yaml(done.out, "ours.yml"))
    assert config.model["method"] == "bigru"
    assert "stdin: " in done.err
