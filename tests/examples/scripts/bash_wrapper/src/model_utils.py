"""A module with an odd name that the wrapper starts."""

import argparse
import pickle


def run(quick):
    with open("fitted/weights.pkl", "wb") as f:
        pickle.dump([quick], f)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    run(parser.parse_args().quick)
