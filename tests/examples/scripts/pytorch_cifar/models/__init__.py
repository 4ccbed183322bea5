from .dla_simple import *
