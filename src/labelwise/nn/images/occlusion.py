"""Occlusion maps (Zeiler and Fergus 2014): how much a label's score falls when a part of the image is covered.

Works with any encoder of images and any head, because nothing but scores is needed.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from labelwise.nn.encode import EncoderHead
from labelwise.nn.heads.base import Head

PIXELS_AT_ONCE = 1 << 20
"""Pixels of images that are encoded at a time."""
SCORES_AT_ONCE = 1 << 22
"""Documents x labels that are ranked at a time."""
LEAST = 1e-6
"""Scores below it count as equal, so that the logarithm of a label that is not ranked any more is finite."""


@torch.inference_mode()
def occlusion_maps(network: EncoderHead, pixels: np.ndarray, labels: np.ndarray, cells: int) -> np.ndarray:
    """Falls of the logarithm of the scores of some labels, float32 [labels, cells, cells].

    Parameters
    ----------
    network
        Encoder and head.
    pixels
        One image, uint8 [channels, height, width].
    labels
        Ids of the labels.
    cells
        The image is divided into cells x cells parts, each of which is covered once by the mean colour.
    """
    encoder: Any = network.encoder
    colour = np.rint(255 * encoder.mean.cpu().numpy()).astype(np.uint8)
    down, right = (np.linspace(0, length, cells + 1).round().astype(int) for length in pixels.shape[1:])

    def covered(cell: int) -> np.ndarray:
        """The image without one part; without none for -1."""
        image = pixels.copy()
        if cell >= 0:
            row, column = divmod(cell, cells)
            image[:, down[row] : down[row + 1], right[column] : right[column + 1]] = colour[:, None, None]
        return image

    encoder.eval()
    at_once, parts = max(1, PIXELS_AT_ONCE // (pixels.shape[1] * pixels.shape[2])), []
    for begin in range(-1, cells * cells, at_once):
        images = np.stack([covered(cell) for cell in range(begin, min(begin + at_once, cells * cells))])
        vectors = encoder(torch.from_numpy(images).to(encoder.device)).float()
        parts.append(label_scores(network.head, vectors, labels))
    logs = np.log(np.maximum(np.concatenate(parts), LEAST))
    return (logs[0] - logs[1:]).T.reshape(len(labels), cells, cells).astype(np.float32)


def label_scores(head: Head, vectors: torch.Tensor, labels: np.ndarray) -> np.ndarray:
    """Scores of some labels [documents, labels]; 0 where a search has not reached the label."""
    scores = np.zeros((len(vectors), len(labels)))
    at_once = max(1, SCORES_AT_ONCE // head.n_labels)
    for begin in range(0, len(vectors), at_once):
        ids, best = head.best(vectors[begin : begin + at_once], head.n_labels)
        found = head.probabilities(best)
        for column, label in enumerate(labels.tolist()):
            scores[begin : begin + at_once, column] = torch.where(ids == label, found, 0.0).amax(1).cpu().numpy()
    return scores
