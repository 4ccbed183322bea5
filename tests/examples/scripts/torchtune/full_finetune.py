import sys
from omegaless import parse
from recipe import FullFinetuneRecipe


def recipe_main(cfg):
    recipe = FullFinetuneRecipe(cfg)
    recipe.setup(cfg)
    recipe.train()
    recipe.cleanup()


if __name__ == "__main__":
    sys.exit(recipe_main(parse()))
