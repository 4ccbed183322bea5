import os
import yaml


class CN(dict):
    def __getattr__(self, name):
        return self[name]

    def __setattr__(self, name, value):
        self[name] = value


_C = CN()
_C.BASE = ['']
_C.MODEL = CN()
_C.MODEL.TYPE = 'swin'
_C.MODEL.NAME = 'swin_tiny_patch4_window7_224'
_C.MODEL.RESUME = ''
_C.TRAIN = CN()
_C.TRAIN.START_EPOCH = 0
_C.TRAIN.EPOCHS = 60
_C.TRAIN.AUTO_RESUME = True
_C.OUTPUT = ''
_C.TAG = 'default'
_C.SAVE_FREQ = 1


def get_config(args):
    config = _C
    with open(args.cfg) as f:
        for section, values in (yaml.safe_load(f) or {}).items():
            config[section].update(values)
    if args.resume:
        config.MODEL.RESUME = args.resume
    if args.output:
        config.OUTPUT = args.output
    if args.tag:
        config.TAG = args.tag
    config.OUTPUT = os.path.join(config.OUTPUT, config.MODEL.NAME, config.TAG)
    return config
