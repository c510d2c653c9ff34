"""How similar are the layers of models?"""
