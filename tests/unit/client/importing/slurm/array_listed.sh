#!/bin/sh
#SBATCH -a 1,3,5-7
#SBATCH -t 90
#SBATCH -c4 -Jants
lr=$(sed -n "${SLURM_ARRAY_TASK_ID}p" lrs.txt)
python train.py --lr ${lr}
