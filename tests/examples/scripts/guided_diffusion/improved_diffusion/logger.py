import datetime
import os
import os.path as osp
import tempfile

_DIR = None
_kvs = {}


def configure(dir=None):
    global _DIR
    if dir is None:
        dir = os.getenv("OPENAI_LOGDIR")
    if dir is None:
        dir = osp.join(tempfile.gettempdir(), datetime.datetime.now().strftime("openai-%Y-%m-%d-%H-%M-%S-%f"))
    os.makedirs(os.path.expanduser(dir), exist_ok=True)
    _DIR = dir
    log("Logging to %s" % dir)


def get_dir():
    return _DIR


def log(*args):
    print(*args, flush=True)


def logkv(key, val):
    _kvs[key] = val


def dumpkvs():
    keywidth, valwidth = max(map(len, _kvs)), 10
    dashes = "-" * (keywidth + valwidth + 7)
    lines = [dashes] + ["| %s | %s |" % (k.ljust(keywidth), ("%-8.3g" % v).ljust(valwidth)) for k, v in sorted(_kvs.items())] + [dashes]
    print("\n".join(lines), flush=True)
    _kvs.clear()
