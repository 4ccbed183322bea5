#!/usr/bin/env python3
"""Recipe for training. To run: python train.py hparams/train.yaml"""
import sys
from brain import Brain, load_hparams, create_experiment_directory

if __name__ == "__main__":
    hparams_file, overrides = sys.argv[1], sys.argv[2:]
    hparams = load_hparams(hparams_file, overrides)
    create_experiment_directory(hparams["output_folder"], hparams_file)
    brain = Brain(hparams)
    brain.fit(range(1, hparams["number_of_epochs"] + 1))
