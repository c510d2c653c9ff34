"""Is it the same model, and if not, where does it first differ?"""
