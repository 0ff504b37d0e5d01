"""PECOS from texts to predictions: its own TF-IDF, models with different seeds, averaged as in its ensembles."""

from __future__ import annotations

from measuring import BEAM, Meter, keep_csr_predictions, load, side_options
from pecos.utils.featurization.text.vectorizers import Vectorizer
from pecos.utils.smat_util import CsrEnsembler
from pecos.xmc.xlinear.model import XLinearModel
from run_pecos import train

FROM_A_TREE = 20
"""Labels per tree in the average, as in labelwise."""


def texts(path) -> list[str]:
    """One lowercased text per line: its words are separated by whitespace."""
    return path.read_text(encoding="utf-8").lower().split("\n")[:-1]


def main() -> None:
    """Read, vectorise, train and predict tree by tree."""
    given = side_options()
    meter = Meter("libpecos")
    labels = load(given.folder, "Y")
    config = {"type": "tfidf", "kwargs": {"base_vect_configs": [{"threads": given.threads}], "threads": given.threads}}
    learned = texts(given.folder / "train_texts.txt")
    vectoriser = meter.clock("tfidf fit", lambda: Vectorizer.train(learned, config))
    features = meter.clock("tfidf", lambda: vectoriser.predict(learned, threads=given.threads))
    learned.clear()
    test = vectoriser.predict(texts(given.folder / "test_texts.txt"), threads=given.threads)
    tops = []
    for number in range(given.trees):
        model = meter.clock("train", lambda number=number: train(features, labels, given.threads, seed=number))
        model.save(str(given.scratch / f"model{number}"))
        del model
        model = XLinearModel.load(str(given.scratch / f"model{number}"), is_predict_only=True)
        tops.append(model.predict(test, beam_size=BEAM, only_topk=FROM_A_TREE, threads=given.threads))
    keep_csr_predictions(given.scratch / "predictions.npz", CsrEnsembler.average(*tops))
    meter.size(given.scratch)
    meter.report()


if __name__ == "__main__":
    main()
