"""The modules of AWS's PyTorch training images, as far as they are known: no image is pulled to find out.

They are what the public Dockerfiles of PyTorch 2.0 to 2.8 name (github.com/aws/deep-learning-containers,
``pytorch/training/docker``), and what those packages require in turn. An image may have more.
"""

from __future__ import annotations

_NAMED = frozenset(
    {
        *("torch", "torchvision", "torchaudio", "torchtnt", "fastai", "accelerate", "s3torchconnector"),
        *("numpy", "scipy", "pandas", "sklearn", "numba", "h5py", "shap", "spacy", "thinc", "blis"),
        *("seaborn", "bokeh", "plotly", "imageio", "PIL", "cv2"),
        *(
            "Cython",
            "pybind11",
            "mpi4py",
            "psutil",
            "tqdm",
            "click",
            "yaml",
            "packaging",
            "setuptools",
            "pkg_resources",
        ),
        *("pip", "requests", "urllib3", "idna", "charset_normalizer", "cryptography", "OpenSSL", "fsspec"),
        *("IPython", "parso", "cloudpickle", "boto3", "awscli"),
        *("sagemaker", "smexperiments", "smclarify", "sagemaker_training", "sagemaker_pytorch_container"),
    }
)
_REQUIRED = frozenset(
    {
        *("typing_extensions", "sympy", "networkx", "jinja2", "filelock"),  # torch
        *("huggingface_hub", "safetensors"),  # accelerate
        *("matplotlib", "fastcore", "fastprogress"),  # fastai
        *("botocore", "s3transfer", "jmespath", "dateutil", "six"),  # boto3
        *("pytz", "joblib", "threadpoolctl", "llvmlite", "certifi", "mpl_toolkits"),  # pandas, scikit-learn and others
        *("attr", "google", "jsonschema"),  # sagemaker
    }
)
KNOWN_MODULES = _NAMED | _REQUIRED
"""Top-level modules that a script may import in each of these images."""
