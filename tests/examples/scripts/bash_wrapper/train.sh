#!/bin/bash
set -e
export OMP_NUM_THREADS=1
python -u src/model_utils.py --out fitted --epochs 40 && echo done
