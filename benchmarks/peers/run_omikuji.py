"""omikuji: its default forest (Parabel-like, balanced 2-means, leaves of 100), trained from a text file.

Reading the file is not counted. Its Python package predicts one document per call: it is called from the allowed number
of Python threads, with the lists of pairs it needs built before the timer starts.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import omikuji
from measuring import BEAM, PLACES, Meter, keep_predictions, load, side_options
from omikuji._libomikuji import ffi, lib


def read(path, threads: int):
    """Read a data set as `Model.train_on_data` does before it trains."""
    pool = omikuji._ThreadPoolHandle(threads)
    loaded = lib.load_omikuji_data_set(ffi.new("char[]", str(path).encode()), pool.ptr)
    if loaded == ffi.NULL:
        raise RuntimeError(f"omikuji could not read {path}")
    return ffi.gc(loaded, lib.free_omikuji_data_set), pool


def train(data, pool, trees: int):
    """The rest of `Model.train_on_data`."""
    parameters = omikuji.Model.default_hyper_param()
    parameters.n_trees = trees
    trained = lib.train_omikuji_model(data, parameters, pool.ptr)
    if trained == ffi.NULL:
        raise RuntimeError("omikuji could not train")
    return omikuji.Model(trained)


def pairs(matrix) -> list:
    """For each row its (feature, value) pairs."""
    return [
        list(zip(matrix.indices[begin:end].tolist(), matrix.data[begin:end].tolist(), strict=True))
        for begin, end in zip(matrix.indptr[:-1], matrix.indptr[1:], strict=True)
    ]


def predict_all(model, rows: list, threads: int) -> list:
    """Predictions of many documents on some threads."""
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(lambda row: model.predict(row, BEAM, PLACES), rows, chunksize=64))


def main() -> None:
    """Train, predict, measure."""
    given = side_options()
    data, pool = read(given.folder / "train.txt", given.threads)
    rows = pairs(load(given.folder, "Xt"))
    meter = Meter("omikuji")
    model = meter.clock("train", lambda: train(data, pool, given.trees), memory_too=True)
    model.save(str(given.scratch / "model"))
    meter.size(given.scratch / "model")
    model.init_prediction_thread_pool(given.threads)
    top = meter.clock("predict", lambda: predict_all(model, rows, given.threads))
    meter.singles(lambda row: model.predict(row, BEAM, PLACES), rows)
    keep_predictions(given.scratch / "predictions.npz", top)
    meter.report()


if __name__ == "__main__":
    main()
