"""Does a model give the two texts of a pair the same place?"""
