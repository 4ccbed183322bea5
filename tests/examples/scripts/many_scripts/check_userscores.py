import argparse

parser = argparse.ArgumentParser()
parser.add_argument("--scores")
print(parser.parse_args())
