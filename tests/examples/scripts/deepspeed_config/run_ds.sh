#!/bin/bash
python train.py --deepspeed --deepspeed_config ds_config.json $@
