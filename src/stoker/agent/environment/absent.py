"""A module that a script did not find: which package contains it, and the line that adds it. Pure."""

from __future__ import annotations

import re

from stoker.model.job.job import Packages
from stoker.model.node.orders import Orders

_LOST = re.compile(rb"^(?:\[?[\w ]+\]?: )?ModuleNotFoundError: No module named '([^'\n]{1,200})'", re.M)
# Packages whose name differs from that of their module.
_PACKAGES = {
    "attr": "attrs",
    "bs4": "beautifulsoup4",
    "cv2": "opencv-python-headless",
    "dateutil": "python-dateutil",
    "dotenv": "python-dotenv",
    "faiss": "faiss-cpu",
    "git": "gitpython",
    "google.protobuf": "protobuf",
    "hydra": "hydra-core",
    "ignite": "pytorch-ignite",
    "IPython": "ipython",
    "magic": "python-magic",
    "mpl_toolkits": "matplotlib",
    "MySQLdb": "mysqlclient",
    "OpenSSL": "pyopenssl",
    "PIL": "pillow",
    "pkg_resources": "setuptools",
    "pl_bolts": "lightning-bolts",
    "psycopg2": "psycopg2-binary",
    "pycocotools": "pycocotools",
    "pytorch_lightning": "pytorch-lightning",
    "sentence_transformers": "sentence-transformers",
    "serial": "pyserial",
    "skimage": "scikit-image",
    "sklearn": "scikit-learn",
    "skopt": "scikit-optimize",
    "tensorboardX": "tensorboardx",
    "torch_geometric": "torch-geometric",
    "umap": "umap-learn",
    "usearch": "usearch",
    "yaml": "pyyaml",
}


def hint(tail: bytes, orders: Orders) -> str:
    """What to do where the end of a script's log reports a missing module; empty where it does not."""
    found = _LOST.findall(tail)
    if not found:
        return ""
    module = found[-1].decode(errors="replace")
    top = module.partition(".")[0]
    known = _PACKAGES.get(module) or _PACKAGES.get(top)
    package = (known or top).replace("_", "-")
    own = "" if known else "; if it is your own code, `stoker plan` shows whether it is uploaded"
    return _advice(f"`{module}` is in the package `{package}`", package, orders) + own


def _advice(what: str, package: str, orders: Orders) -> str:
    environment = orders.job.environment
    if environment.requirements:
        return f"{what}: add the line `{package}` to `{environment.requirements}`"
    if orders.python:
        return f"{what}: install it with `{environment.python or orders.python} -m pip install {package}`"
    if environment.python and not environment.is_taken_along:
        return f"{what}, which `{environment.python}` on the node lacks: name a requirements file as `environment`"
    if environment.packages is Packages.NONE:
        return f"{what}: it is not installed because of `packages: none` in the job file"
    others = environment.packages if isinstance(environment.packages, tuple) else ()
    line = f"environment: {{packages: [{', '.join((*others, package))}]}}"
    return f"{what}: install it here, and add the line `{line}` to the job file"
