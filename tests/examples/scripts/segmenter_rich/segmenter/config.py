import yaml
from types import SimpleNamespace


def load(path):
    with open(path) as handle:
        raw = yaml.safe_load(handle)
    return SimpleNamespace(**{k: SimpleNamespace(**v) if isinstance(v, dict) else v for k, v in raw.items()})
