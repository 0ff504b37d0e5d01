"""Occlusion maps (Zeiler and Fergus 2014): how much a label's score falls when a part of the image is covered.

Works with any encoder of images and any head, because nothing but scores is needed.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from labelwise.networks.encoder_head import EncoderHead

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
    images = np.repeat(pixels[None], cells * cells + 1, axis=0)
    encoder: Any = network.encoder
    colour = np.rint(255 * encoder.mean.cpu().numpy()).astype(np.uint8)
    down, right = (np.linspace(0, length, cells + 1).round().astype(int) for length in pixels.shape[1:])
    for cell in range(cells * cells):
        row, column = divmod(cell, cells)
        part = images[cell + 1, :, down[row] : down[row + 1], right[column] : right[column + 1]]
        part[:] = colour[:, None, None]
    encoder.eval()
    vectors = torch.cat(
        [encoder(torch.from_numpy(some).to(encoder.device)).float() for some in np.array_split(images, 4)]
    )
    scores = np.stack([label_scores(network, vector[None], labels) for vector in vectors])
    logs = np.log(np.maximum(scores, LEAST))
    return (logs[0] - logs[1:]).T.reshape(len(labels), cells, cells).astype(np.float32)


def label_scores(network: EncoderHead, vector: torch.Tensor, labels: np.ndarray) -> np.ndarray:
    """Scores of some labels for one vector; 0 where a search has not reached the label."""
    head = network.head
    ids, best = head.best(vector, head.n_labels)
    found = dict(zip(ids[0].tolist(), head.probabilities(best)[0].tolist(), strict=True))
    return np.array([found.get(int(label), 0.0) for label in labels])
