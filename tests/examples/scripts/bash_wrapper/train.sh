#!/bin/bash
set -e
export OMP_NUM_THREADS=1
python src/model_utils.py --quick && echo done
