"""Does a model give the two texts of a pair, or their words, the same place?"""
