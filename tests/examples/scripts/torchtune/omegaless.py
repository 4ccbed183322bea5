"""--config FILE key=value ..."""
import argparse
from types import SimpleNamespace
import yaml


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("--config", type=str, required=True, help="Path/name of a yaml file with recipe args")
    args, rest = parser.parse_known_args()
    with open(args.config) as f:
        cfg = yaml.safe_load(f)
    for one in rest:
        key, value = one.split("=", 1)
        cfg[key] = yaml.safe_load(value)
    return SimpleNamespace(**cfg)
