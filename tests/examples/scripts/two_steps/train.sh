#!/bin/bash
set -e
python prepare.py --out data/processed
python train.py --data data/processed --epochs 50
python evaluate.py
