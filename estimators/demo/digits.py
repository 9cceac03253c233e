"""UCI's handwritten digits, as the file that ``entrypoints/image_classification.py`` reads."""

from __future__ import annotations

from pathlib import Path

import numpy as np


def write_digits(path: Path, *, test_share: float = 0.2) -> int:
    """Write scikit-learn's 1,797 images in a random but fixed split; return their number.

    Arrays: ``train_images`` and ``test_images`` uint8 [N, 8, 8] with values 0 to 16, ``train_labels`` and
    ``test_labels`` int64 [N] with values 0 to 9.
    """
    from sklearn.datasets import load_digits

    digits = load_digits()
    images, labels = digits.images.astype(np.uint8), digits.target.astype(np.int64)
    order = np.random.default_rng(0).permutation(len(images))
    test, train = np.split(order, [round(len(order) * test_share)])
    np.savez_compressed(
        path,
        train_images=images[train],
        train_labels=labels[train],
        test_images=images[test],
        test_labels=labels[test],
    )
    return len(images)
