#!/usr/bin/env bash
# Two stages in the way of Kaldi and ESPnet.
set -e
set -o pipefail
stage=0
stop_stage=10
exp=exp/tdnn
if [ ${stage} -le 0 ] && [ ${stop_stage} -ge 0 ] && [ ! -f dump/.done ]; then
  echo "stage 0: data preparation"
  python local/prepare.py --out dump
  touch dump/.done
fi
if [ ${stage} -le 1 ] && [ ${stop_stage} -ge 1 ]; then
  echo "stage 1: training"
  python -m speech.bin.train --config conf/train.yaml --data dump --exp-dir ${exp} 2>&1 | tee -a train.log
fi
if [ ${stage} -le 2 ] && [ ${stop_stage} -ge 2 ]; then
  echo "stage 2: averaging"
  python local/average.py ${exp}
fi
