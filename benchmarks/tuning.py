"""What a Bayesian search finds in 8 trainings, and a random one: the learning rate of the demo's digits.

Both are tuning jobs of the SDK's own tuner on the local platform, with the same seeds: their first three trainings are
the same. Each training is one host, a job of its own.

    python benchmarks/tuning.py [--jobs 8] [--seeds 3]

Target: Bayesian's best accuracy at least random's, in the mean over the seeds.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
import warnings
from pathlib import Path

from sagemaker.tuner import ContinuousParameter, HyperparameterTuner

from estimators import Estimator
from estimators.demo.run import write_digits
from estimators.local import LocalSageMaker

SCRIPT = Path(__file__).parents[1] / "entrypoints"
STRATEGIES = ("Random", "Bayesian")


def search(platform: LocalSageMaker, data: str, strategy: str, *, jobs: int, seed: int) -> tuple[float, float]:
    """Return the best accuracy that a search found, and its learning rate."""
    estimator = Estimator(
        "image_classification.py",
        source_dir=SCRIPT,
        role=platform.role,
        instance_type="ml.m5.large",
        hyperparameters={"epochs": 1, "batch_size": 64},
        sagemaker_session=platform.session,
    ).to_sagemaker()
    tuner = HyperparameterTuner(
        estimator,
        "accuracy",
        {"lr": ContinuousParameter(1e-6, 10.0, scaling_type="Logarithmic")},
        metric_definitions=estimator.metric_definitions,
        strategy=strategy,
        max_jobs=jobs,
        max_parallel_jobs=1,
        random_seed=seed,
    )
    tuner.fit({"training": data})
    found = tuner.analytics().dataframe().sort_values("FinalObjectiveValue", ascending=False).iloc[0]
    return found["FinalObjectiveValue"], found["lr"]


def main() -> None:
    """Run the searches in turns, and print what each found."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--jobs", type=int, default=8)
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    best: dict[str, list[float]] = {strategy: [] for strategy in STRATEGIES}
    with tempfile.TemporaryDirectory() as directory, LocalSageMaker() as platform:
        write_digits(Path(directory, "digits.npz"))
        data = platform.session.upload_data(directory, key_prefix="digits")
        print("\n| seed | strategy | best accuracy | learning rate | seconds |\n|---|---|---|---|---|")
        for seed in range(options.seeds):
            for strategy in STRATEGIES:
                started = time.monotonic()
                accuracy, lr = search(platform, data, strategy, jobs=options.jobs, seed=seed)
                best[strategy].append(accuracy)
                seconds = time.monotonic() - started
                print(f"| {seed} | {strategy} | {accuracy:.4f} | {lr:.3g} | {seconds:.0f} |", flush=True)
    random, bayesian = (statistics.mean(best[strategy]) for strategy in STRATEGIES)
    print(f"\nBayesian {bayesian:.4f}, random {random:.4f}; target: at least random's")


if __name__ == "__main__":
    main()
