"""How similar is what the heads of models attend to?"""
