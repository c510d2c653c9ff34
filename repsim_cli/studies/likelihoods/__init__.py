"""How far apart are models by the likelihoods that they give to the same texts?"""
