"""A model of a few hundred weights with all that makes resuming hard: dropout, batch norm, ragged texts, a sparse table."""

import numpy as np
import pytest
import torch
from torch import nn

from labelwise.nn.inputs import training_batches
from labelwise.runtime.threads import using_threads

WORDS, LABELS, WIDTH = 40, 6, 8


@pytest.fixture(autouse=True)
def _one_thread():
    """Two threads for a model this small only wait for each other, for long when the machine is busy."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    with using_threads(1):
        yield
    torch.set_num_threads(before)


class TinyModel(nn.Module):
    def __init__(self, sparse=False, dropout=0.3, seed=0, batch_norm=True):
        super().__init__()
        torch.manual_seed(seed)
        self.words = nn.Embedding(WORDS, WIDTH, sparse=sparse)
        norm = nn.BatchNorm1d(WIDTH) if batch_norm else nn.Identity()
        self.body = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH), nn.ReLU(), norm, nn.Dropout(dropout))
        self.head = nn.Linear(WIDTH, LABELS)

    def forward(self, ids, mask):
        vectors = self.words(ids) * mask[..., None]
        return self.head(self.body(vectors.sum(1) / mask.sum(1, keepdim=True)))


class TinyFitting:
    """Label l is on documents that have word l: it can be learned."""

    head_names, row_tables = ("head.",), ()

    def __init__(self, config, documents=60, sparse=False, dropout=0.3, seed=0, batch_norm=True):
        self.config = config
        self.module = TinyModel(sparse, dropout, seed, batch_norm)
        draw = np.random.default_rng(7)
        lengths = draw.integers(1, 12, documents)
        self.offsets = np.concatenate([[0], np.cumsum(lengths)])
        self.words = draw.integers(0, WORDS, self.offsets[-1])
        self.labels = np.zeros((documents, LABELS), np.float32)
        for document in range(documents):
            words = self.words[self.offsets[document] : self.offsets[document + 1]]
            self.labels[document, np.unique(words % LABELS)] = 1
        self.held_out = np.arange(0, documents, 5)
        self.train = np.setdiff1d(np.arange(documents), self.held_out)
        self.loads = 0

    def batches(self, epoch):
        lengths = np.diff(self.offsets)[self.train]
        return [self.train[batch] for batch in training_batches(lengths, self.config, epoch)]

    def load(self, item, epoch=0):
        self.loads += 1
        rows = [torch.from_numpy(self.words[self.offsets[i] : self.offsets[i + 1]]) for i in item]
        ids = nn.utils.rnn.pad_sequence(rows, batch_first=True)
        lengths = torch.tensor([len(row) for row in rows])
        mask = torch.arange(ids.shape[1]) < lengths[:, None]
        return ids, mask.float(), torch.from_numpy(self.labels[item])

    def loss(self, batch):
        ids, mask, labels = batch
        return nn.functional.binary_cross_entropy_with_logits(self.module(ids, mask), labels)

    def validate(self, budget):
        assert not self.module.training
        ids, mask, labels = self.load(self.held_out)
        torch.rand(3)  # a validation that draws must not change the training
        logits = self.module(ids, mask)
        best = logits.argmax(1)
        return {
            "P@1": float(labels[torch.arange(len(best)), best].mean()),
            "valid_loss": float(nn.functional.binary_cross_entropy_with_logits(logits, labels)),
        }


class Watcher:
    """A monitor that sees nothing."""

    def after_step(self, step, loss):
        return None

    def clipped(self, norm):
        pass

    def after_validation(self, numbers):
        return None

    def state(self):
        return {}

    def restore(self, state):
        pass


def weights_of(module):
    return {name: tensor.detach().clone() for name, tensor in [*module.named_parameters(), *module.named_buffers()]}


def same_weights(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)
