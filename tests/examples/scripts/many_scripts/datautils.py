def load(path):
    return open(path).read()


if __name__ == "__main__":
    print(load("x"))
